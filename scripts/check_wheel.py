#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""check_wheel.py WHEEL: checks what the libraries and programs of a wheel link, then installs the wheel into a new environment beside the
torch of this Python, and sums over two ranks there.

A wheel may link glibc, libstdc++, torch's libraries and what it holds itself. Everything else would tie it to one distribution.
"""
import pathlib
import re
import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile

SYSTEM = re.compile(r"(libc|libm|libpthread|libdl|librt)\.so\.\d+|ld-linux-.*|libstdc\+\+\.so\.6|libgcc_s\.so\.1")
TORCH = re.compile(r"lib(torch|torch_cpu|torch_cuda|torch_python|c10|c10_cuda)\.so")
SUM = """
import torch
import gradwire.distributed as dist
dist.init_process_group()
numbers = torch.full((1000,), dist.get_rank() + 1.0)
dist.all_reduce(numbers)
assert numbers.tolist() == [3.0] * 1000, numbers
print("rank", dist.get_rank(), "has the sum over", dist.get_backend())
dist.destroy_process_group()
"""


def linked(file):
    """The names that an ELF file needs."""
    said = subprocess.run(["readelf", "-d", str(file)], capture_output=True, text=True, check=True).stdout
    return re.findall(r"\(NEEDED\).*\[(.*)\]", said)


def strangers(folder):
    """`file needs library` of everything that the wheel neither holds nor may expect."""
    binaries = [file for file in folder.rglob("*") if file.is_file() and file.read_bytes()[:4] == b"\x7fELF"]
    if not any(file.name == "libgradwire_core.so" for file in binaries):
        yield "the wheel holds no libgradwire_core.so"
    own = {file.name for file in binaries}
    for file in sorted(binaries):
        for name in linked(file):
            if name not in own and not SYSTEM.fullmatch(name) and not TORCH.fullmatch(name):
                yield f"{file.relative_to(folder)} needs {name}"


def sum_over_two_ranks(wheel, folder):
    """Installs the wheel into an environment in `folder`, which sees this Python's torch, and runs a program on two ranks."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--disable-pip-version-check", "-q", "--no-index", "--no-deps", str(wheel)], check=True)
    site = subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], capture_output=True, text=True,
                          check=True).stdout.strip()
    torch = subprocess.run([sys.executable, "-c", "import torch; print(torch.__path__[0])"], capture_output=True, text=True, check=True)
    (pathlib.Path(site) / "torch_beside.pth").write_text(str(pathlib.Path(torch.stdout.strip()).parent) + "\n")
    (folder / "sum.py").write_text(SUM)
    subprocess.run([folder / "bin" / "gradwire-run", "-n", "2", "--timeout", "120", python, folder / "sum.py"], check=True, cwd=folder)
    subprocess.run([folder / "bin" / "gradwire-plan", "--version"], check=True, cwd=folder)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    wheel = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as scratch:
        content = pathlib.Path(scratch) / "content"
        zipfile.ZipFile(wheel).extractall(content)
        problems = list(strangers(content))
        if problems:
            sys.exit(f"{wheel.name}:\n" + "\n".join(problems))
        sum_over_two_ranks(wheel, pathlib.Path(scratch) / "environment")
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB; links glibc, libstdc++ and torch alone; "
          f"installed and run with Python {sysconfig.get_python_version()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

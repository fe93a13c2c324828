#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Measures gradwire beside its peers: scripts/bench.py BUILD. `make bench` calls it.

Every benchmark's lines go to BUILD/bench/NAME.jsonl, each with the command, the machine, the peers' versions and the
day. The report of all is BUILD/bench/report.html. --docs also writes the tables of docs/performance.md and the pictures
that README shows. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
NETWORK = "network --rate 1gbit --bytes 25Mi --rounds 5 --hook "
# Together about ten minutes on two processors.
BENCHMARKS = {
    "all_reduce": "all_reduce --peers --bytes 64,4Ki,64Ki,1Mi,25Mi",
    "collectives": "collectives --peers --bytes 64,4Ki,64Ki,1Mi,25Mi",
    "ddp": "ddp --peers",
    "hooks": "hooks --peers",
    "codecs": "codecs --peers",
    "network_gloo": NETWORK + "allreduce,fp16_compress --backend gloo --peers",
    "network_ucx": NETWORK + "allreduce,fp16_compress,int8,int4,one_bit --backend ucx",
}
# For a test: that all of it works, not how fast.
QUICK = {
    "all_reduce": "all_reduce --bytes 4Ki,64Ki --rounds 1",
    "codecs": "codecs --codec fp16,int8 --bytes 64Ki --rounds 1",
}
NEEDS = {"network_gloo": "network namespaces", "network_ucx": "network namespaces and UCX"}


def first_line(command: list[str]) -> str:
    """What a command says first; empty where there is no such command."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return (done.stdout.splitlines() or [""])[0].strip()


def machine() -> str:
    model = re.search(r"^model name\s*:\s*(.*)$", pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.M)
    name = model.group(1).strip() if model else os.uname().machine
    return f"{name}, {len(os.sched_getaffinity(0))} processors"


def ucx_version() -> str:
    try:
        version = ctypes.CDLL("libucp.so.0").ucp_get_version_string
    except OSError:
        return ""
    version.restype = ctypes.c_char_p
    return version().decode()


def versions() -> str:
    torch = first_line([str(ROOT / ".venv" / "bin" / "python"), "-c", "import torch; print(torch.__version__)"])
    mpi = re.search(r"[0-9][0-9.]+", first_line(["mpirun", "--version"]))
    found = [
        f"PyTorch {torch}" if torch else "",
        f"OpenMPI {mpi.group()}" if mpi else "",
        f"UCX {ucx_version()}" if ucx_version() else "",
    ]
    return ", ".join(filter(None, found)) or "no peers"


def measure(program: pathlib.Path, arguments: str, origin: dict[str, str], file: pathlib.Path) -> bool:
    """Runs a benchmark and writes its lines as they come. Returns whether it ended well."""
    command = [str(program), *shlex.split(arguments), "--json"]
    lines = 0
    with file.open("w") as output, subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        for line in running.stdout:
            record = json.loads(line) | {"origin": origin | {"command": f"gradwire-bench {arguments}"}}
            output.write(json.dumps(record) + "\n")
            output.flush()
            lines += 1
            print(f"\r  {lines} lines", end="", flush=True)
    print()
    return running.returncode == 0 and lines > 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench.py", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("build", type=pathlib.Path, help="the build folder")
    parser.add_argument("--only", choices=BENCHMARKS, action="append", help="one benchmark; may be given several times")
    parser.add_argument("--quick", action="store_true", help="a run that shows that all of it works, not how fast it is")
    parser.add_argument("--docs", action="store_true", help="write docs/performance.md and its pictures, too")
    options = parser.parse_args()
    if options.docs and (options.only or options.quick):
        parser.error("--docs writes all figures anew: leave out --only and --quick")
    chosen = QUICK if options.quick else BENCHMARKS
    chosen = {name: arguments for name, arguments in chosen.items() if not options.only or name in options.only}
    folder = options.build / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    origin = {"machine": machine(), "versions": versions(), "day": datetime.date.today().isoformat()}
    print(f"{origin['machine']}; {origin['versions']}")
    files, failed = [], []
    for name, arguments in chosen.items():
        print(f"{name}: gradwire-bench {arguments}")
        file = folder / f"{name}.jsonl"
        if measure(options.build / "bin" / "gradwire-bench", arguments, origin, file):
            files.append(str(file))
        else:
            failed.append(name)
            print(f"  {name} did not end well" + (f"; it needs {NEEDS[name]}" if name in NEEDS else ""))
    if not files:
        return 1
    report = [sys.executable, str(ROOT / "python" / "gradwire" / "report"), *files, "-o", str(folder / "report.html")]
    if options.docs and failed:
        print(f"docs/performance.md stays as it is, because there are no figures of {', '.join(failed)}")
    elif options.docs:
        report += ["--tables", str(ROOT / "docs" / "performance.md"), "--pictures", str(ROOT / "docs" / "pictures")]
    if subprocess.run(report, check=False).returncode != 0:
        return 1
    print(f"{folder / 'report.html'}")
    return 1 if failed and (options.docs or any(name not in NEEDS for name in failed)) else 0


if __name__ == "__main__":
    sys.exit(main())

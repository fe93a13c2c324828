#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Checks the arrows of inclusion (docs/architecture.md): rooms below the line include no torch, no room includes one above it,
only gradwire/base/*.cc includes spdlog, and no public header includes an internal one."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Each room with the rooms it may include besides itself.
BELOW = {
    "base": [],
    "observe": ["base"],
    "kernels": ["base"],
    "store": ["base"],
    "backend": ["base", "kernels", "store"],
    "compress": ["base", "kernels", "store", "backend"],
    "membership": ["base", "store"],
}
ABOVE = {
    "process_group": [*BELOW],
    "functional": [*BELOW, "process_group"],
    "ddp": [*BELOW, "process_group", "functional"],
    "hooks": [*BELOW, "process_group", "functional", "ddp"],
    "optim": [*BELOW, "process_group", "functional", "ddp", "hooks"],
    "nn": [*BELOW, "process_group", "functional", "ddp"],
    "amp": [*BELOW, "process_group"],
    "elastic": [*BELOW, "process_group", "functional", "ddp", "hooks", "amp"],
    "testing": [*BELOW, "process_group", "functional", "ddp", "hooks", "optim"],
}
SUFFIXES = (".h", ".cc", ".cu", ".cuh")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
TORCH = re.compile(r"^(torch|ATen|c10|caffe2|torchgen|pybind11)/")
LOGGING = re.compile(r"^(spdlog|fmt)/")


def includes(path):
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(2)


def check_room(room, may_include, torch_free):
    folder = ROOT / "gradwire" / room
    for path in sorted(p for p in folder.rglob("*") if p.suffix in SUFFIXES):
        name = path.relative_to(ROOT)
        public = path.suffix == ".h" and not path.stem.endswith("_internal") and "_test" not in path.stem
        for number, header in includes(path):
            where = f"{name}:{number}: includes {header}"
            if torch_free and TORCH.match(header):
                yield f"{where}: {room} lies below the line and never includes torch"
            if LOGGING.match(header) and not (room == "base" and path.suffix == ".cc"):
                yield f"{where}: only gradwire/base/*.cc may include spdlog or fmt (torch brings another fmt)"
            if header.startswith("gradwire/"):
                other = header.split("/")[1]
                if other != room and other not in may_include:
                    yield f"{where}: {room} may include {', '.join(may_include) or 'no other room'}"
                if public and header.endswith("_internal.h"):
                    yield f"{where}: a public header includes one that is not installed"


def check_umbrella(name, may_include):
    """The headers that lie in no room include public headers only, and no others than `may_include`'s."""
    for number, header in includes(ROOT / "gradwire" / name):
        room = header.split("/")[1]
        if not header.startswith("gradwire/") or (header != "gradwire/core.h" and room not in may_include):
            yield f"gradwire/{name}:{number}: includes {header}: it may include headers of {', '.join(may_include)}"
        if header.endswith("_internal.h"):
            yield f"gradwire/{name}:{number}: includes {header}, which is not installed"


def check_kernels():
    """CUDA's kernels know neither torch nor the codecs: headers of CUDA, gradwire/kernels/ and their own alone."""
    folder = ROOT / "gradwire" / "hooks" / "device" / "cuda"
    for path in sorted(p for p in folder.iterdir() if p.suffix in (".cu", ".cuh") or p.name.endswith("_internal.h")):
        for number, header in includes(path):
            if TORCH.match(header) or (header.startswith("gradwire/") and
                                       not header.startswith(("gradwire/kernels/", "gradwire/hooks/device/cuda/"))):
                yield f"{path.relative_to(ROOT)}:{number}: includes {header}: the kernels know gradwire/kernels/ alone"


def main():
    problems, files = [], 2
    problems += check_umbrella("core.h", list(BELOW))
    problems += check_umbrella("gradwire.h", [*BELOW, *ABOVE])
    for rooms, torch_free in ((BELOW, True), (ABOVE, False)):
        for room, may_include in rooms.items():
            problems += check_room(room, may_include, torch_free)
            files += sum(1 for p in (ROOT / "gradwire" / room).rglob("*") if p.suffix in SUFFIXES)
    problems += check_kernels()
    known = {*BELOW, *ABOVE}
    for folder in sorted((ROOT / "gradwire").iterdir()):
        if folder.is_dir() and folder.name not in known:
            problems.append(f"gradwire/{folder.name}: a room that scripts/check_layers.py does not know; say what it may include")
    for path in sorted((ROOT / "launch").rglob("*.*")):
        if path.suffix in SUFFIXES:
            files += 1
            problems += [f"{path.relative_to(ROOT)}:{number}: includes {header}: gradwire-run is torch-free"
                         for number, header in includes(path) if TORCH.match(header)]
    print("\n".join(problems) if problems else f"layers: {files} files, every arrow of inclusion points down")
    if files == 2:
        sys.exit("check_layers: no file found")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

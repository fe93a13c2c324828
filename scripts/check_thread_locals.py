#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""check_thread_locals.py FOLDER: fails where the shared libraries in FOLDER take more static memory of each thread than Python has left
for libraries that it loads. A library with a static thread-local variable (gradwire/base/thread_local.h) takes that memory for all of its
thread-local variables, those of static libraries too that it holds; `import gradwire` fails then with "cannot allocate memory in static
TLS block". glibc keeps 1,664 bytes for all libraries of a process."""
import pathlib
import re
import subprocess
import sys

MOST_BYTES = 512


def static_bytes(library):
    """The bytes of thread-local variables of a library that wants them static, else None."""
    out = subprocess.run(["readelf", "--wide", "--program-headers", "--dynamic", library], check=True, capture_output=True, text=True).stdout
    if not re.search(r"\(FLAGS\).*STATIC_TLS", out):
        return None
    segment = re.search(r"^ *TLS +(?:0x[0-9a-f]+ +){4}(0x[0-9a-f]+)", out, re.MULTILINE)
    return int(segment[1], 16) if segment else 0


def main():
    libraries = sorted(path for path in pathlib.Path(sys.argv[1]).glob("libgradwire*.so") if path.is_file())
    found = {path.name: size for path in libraries if (size := static_bytes(path)) is not None}
    said = ", ".join(f"{name} {size}" for name, size in found.items())
    if not found:
        sys.exit(f"check_thread_locals: none of {len(libraries)} libraries in {sys.argv[1]} has a static thread-local variable")
    if sum(found.values()) > MOST_BYTES:
        sys.exit(f"check_thread_locals: static bytes of each thread: {said}; all together may take {MOST_BYTES}")
    print(f"check_thread_locals: static bytes of each thread: {said}; all together may take {MOST_BYTES}")


if __name__ == "__main__":
    main()

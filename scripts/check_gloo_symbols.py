#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""check_gloo_symbols.py OBJECT...: fails where an object file makes, or brings code of, a type of Gloo's. Gloo's headers are
Debian's, the Gloo in libtorch is another version: whatever of Gloo's is compiled here could have another layout there. Of all
objects only that of gloo.cc may even refer to a function whose arguments are Gloo's."""
import re
import subprocess
import sys

# Gloo's own functions and tables, and those of libtorch's classes that derive from Gloo's.
FORBIDDEN = re.compile(r"^(?:(?:vtable|typeinfo|typeinfo name|VTT|construction vtable) for )?(?:gloo::|c10d::ProcessGroupGloo::GlooStore)")
# A weak copy of one of these would stand in for libtorch's own, which was compiled against the other headers.
COPIES = re.compile(r"^(?:vtable for )?c10d::ProcessGroupGloo(?:::(?:AsyncWork|SendWork|RecvWork|setTimeout|getBackendOptions)|$)")
DEFINED = "TtWwVvDdBbRru"


def symbols(path):
    out = subprocess.run(["nm", "--demangle", path], check=True, capture_output=True, text=True).stdout
    for line in out.splitlines():
        match = re.match(r"^[0-9a-f]*\s+([A-Za-z])\s+(.*)$", line)
        if match:
            yield match.group(1), match.group(2)


def main():
    problems, mentions = [], 0
    for path in sys.argv[1:]:
        own = path.endswith("gloo.cc.o")
        for kind, name in symbols(path):
            if FORBIDDEN.match(name) or (kind in DEFINED and COPIES.match(name)):
                problems.append(f"{path}: {kind} {name}")
            elif "ProcessGroupGloo" in name or "gloo::" in name.replace("gradwire::internal::", ""):
                mentions += 1
                if not own:
                    problems.append(f"{path}: only gloo.cc may know Gloo: {kind} {name}")
    print("\n".join(problems) if problems else f"gloo: {len(sys.argv) - 1} object files, nothing of Gloo's in them")
    if mentions == 0:
        sys.exit("check_gloo_symbols: no object mentions libtorch's Gloo; is gloo.cc.o among them?")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

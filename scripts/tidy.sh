#!/usr/bin/env bash
# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
# scripts/tidy.sh [FILE...]   clang-tidy over the given sources, or over all of the torch-free half.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cmake --preset clang-core >/dev/null
if (($# == 0)); then
    mapfile -t files < <(python3 - build-clang-core/compile_commands.json <<'PYTHON'
import json, sys
print("\n".join(sorted({entry["file"] for entry in json.load(open(sys.argv[1]))})))
PYTHON
    )
else
    files=("$@")
fi
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" clang-tidy-14 -p build-clang-core --quiet

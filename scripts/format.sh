#!/usr/bin/env bash
# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
# scripts/format.sh [--check]   formats every C++ source of the repository, or says which are not formatted.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mapfile -d '' -t sources < <(find gradwire python launch examples bench tests fuzz cmake -type d -name 'build*' -prune -o \
    -type f \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' \) -print0 2>/dev/null | sort -z)
((${#sources[@]} > 0)) || { echo "format: no sources found" >&2; exit 1; }

if [[ "${1:-}" != --check ]]; then
    printf '%s\0' "${sources[@]}" | xargs -0 -n 16 -P "$(nproc)" clang-format-14 -i
    exit 0
fi
mapfile -t wrong < <(printf '%s\0' "${sources[@]}" | xargs -0 -n 16 -P "$(nproc)" bash -c \
    'for source in "$@"; do clang-format-14 "$source" | cmp -s - "$source" || printf "%s\n" "$source"; done' bash | sort)
if ((${#wrong[@]} > 0)); then
    printf 'not formatted: %s\n' "${wrong[@]}"
    echo "format: ${#wrong[@]} of ${#sources[@]} files are not formatted; run 'make format'"
    exit 1
fi
echo "format: all ${#sources[@]} files are formatted"

#!/usr/bin/env bash
# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
# scripts/wheel.sh   builds dist/gradwire-*.whl for the Python and the torch in .venv/, and checks what the wheel links.
# The wheel runs beside the torch that it was built against, on any Linux whose glibc is at least as new as this one's: the tag
# says which. It holds no backend mpi and no backend ucx, which need the machine's own libraries.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools=.venv-package
work=build-wheel/raw
rm -rf "$work" && mkdir -p "$work" dist
PATH="$PWD/$tools/bin:$PATH" "$tools/bin/python" -m pip wheel --disable-pip-version-check --no-build-isolation --no-deps -q \
    --wheel-dir "$work" . >&2
# torch's own libraries stay out: the torch package beside the wheel brings them. Highway comes in where Debian has no archive of it.
PATH="$PWD/$tools/bin:$PATH" "$tools/bin/python" -m auditwheel repair --wheel-dir dist \
    --exclude 'libtorch*.so*' --exclude 'libc10*.so*' --exclude 'libgradwire*.so*' "$work"/gradwire-*.whl >&2
wheel="$(ls -t dist/gradwire-*.whl | head -n 1)"
"$tools/bin/python" scripts/check_wheel.py "$wheel"
echo "$wheel"

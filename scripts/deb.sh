#!/usr/bin/env bash
# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
# scripts/deb.sh [--core] [BUILD]   builds the Debian packages of a configured build folder into dist/, and checks them: what they hold and
# depend on, and that tests/outside builds and runs against them, unpacked into a scratch root. --core leaves out the program with torch,
# which takes half a minute to compile.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

with_torch=yes
if [[ "${1:-}" == --core ]]; then with_torch=no; shift; fi
build="${1:-build}"
jobs="${JOBS:-$(nproc)}"
targets=(gradwire_core gradwire gradwire-run)
for engine in mpi ucx; do
    if ninja -C "$build" -t query "gradwire_$engine" >/dev/null 2>&1; then targets+=("gradwire_$engine"); fi
done
ninja -C "$build" -j"$jobs" "${targets[@]}"

mkdir -p dist
rm -f dist/*.deb
cpack --config "$build/CPackConfig.cmake" -G DEB -B "$build/packages" >/dev/null
mv "$build"/packages/*.deb dist/
for package in dist/*.deb; do
    printf '%s  depends on: %s\n' "$(basename "$package")" "$(dpkg-deb -f "$package" Depends)"
done

# --- The packages as a user finds them -------------------------------------------------------------------------------

root="$(mktemp -d)"
trap 'rm -rf "$root"' EXIT
for package in dist/*.deb; do dpkg-deb -x "$package" "$root"; done
if readelf -d "$root"/usr/lib/libgradwire*.so.*.* "$root"/usr/bin/gradwire-run | grep -E 'R(UN)?PATH'; then
    echo "deb: a file of the packages looks for libraries in a folder of this machine"
    exit 1
fi
if readelf -d "$root"/usr/lib/libgradwire_core.so.*.* | grep -E 'NEEDED.*(torch|c10)'; then
    echo "deb: libgradwire_core links torch"
    exit 1
fi
export LD_LIBRARY_PATH="$root/usr/lib" CMAKE_PREFIX_PATH="$root/usr"
cmake -G Ninja -S tests/outside/core -B "$root/core" >/dev/null
ninja -C "$root/core" >/dev/null
timeout 120 "$root/core/outside_core"
scripts/check_pkg_config.sh "$root/usr"
if [[ "$with_torch" == no ]]; then
    echo "deb: $(find dist -name '*.deb' | wc -l) packages in dist/"
    exit 0
fi
torch="$(sed -n 's/^GRADWIRE_TORCH_DIR:.*=//p' "$build/CMakeCache.txt")"
cmake -G Ninja -S tests/outside/torch -B "$root/torch" ${torch:+-DGRADWIRE_TORCH_DIR="$torch"} >/dev/null
ninja -C "$root/torch" outside_all_reduce >/dev/null
timeout 120 "$root/usr/bin/gradwire-run" -n 2 "$root/torch/outside_all_reduce"
echo "deb: $(find dist -name '*.deb' | wc -l) packages in dist/"

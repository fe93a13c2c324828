#!/usr/bin/env bash
# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
# scripts/bundle.sh [make|list|check [TARGET...]]   the sources with all that a build needs on a machine without a network.
#   make   dist/gradwire-VERSION-bundle.tar.xz: every file that git knows, and third_party/: the headers and sources of Highway, spdlog,
#          fmt, asio, CLI11, nlohmann json and GoogleTest, as Debian has them, with their licences. At most 60 MiB. (The default.)
#   list   checks the names and the size of the bundle in dist/; seconds.
#   check  unpacks it and runs scripts/gpu_check.py --without-gpu there, with no network and with the installed headers of those libraries
#          out of sight: CMake, Ninja, a compiler and a libtorch are all that is left. With TARGETs, it builds these targets of Ninja instead,
#          and runs the tests among them. GRADWIRE_TORCH_DIR names the libtorch; .venv's otherwise. JOBS: how many compilations at a time.
#          Needs root, for unshare. BUNDLE_WORK names a folder that stays.
# In the unpacked bundle: cmake -G Ninja -S . -B build && ninja -C build. There is no mpi, ucx or gloo without their headers, and no
# secrets without OpenSSL's.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VERSION="$(sed -nE 's/^project\(gradwire VERSION ([0-9.]+).*/\1/p' CMakeLists.txt)"
NAME="gradwire-$VERSION"
BUNDLE="$PWD/dist/$NAME-bundle.tar.xz"
MOST_BYTES=$((60 * 1024 * 1024))
# Debian packages whose headers (or, for GoogleTest, sources) are carried. Highway's sources come from its source package.
PACKAGES=(libhwy-dev libspdlog-dev libfmt-dev libasio-dev libcli11-dev nlohmann-json3-dev libgtest-dev)
HEADERS=(spdlog fmt asio asio.hpp CLI nlohmann)

die() { echo "bundle: $*" >&2; exit 1; }

# The source package of Highway, by apt from the same archives as the packages; apt checks the signature.
highway_source() {
    local at="$PWD/build-bundle/source" options lists
    compgen -G "$at/highway_*.orig.tar.*" >/dev/null && return
    mkdir -p "$at/parts" "$at/lists/partial" "$at/cache/archives/partial"
    lists=/etc/apt/sources.list.d/debian.sources
    if [[ -e "$lists" ]]; then
        sed 's/^Types: deb$/Types: deb-src/' "$lists" >"$at/parts/source.sources"
    elif grep -q '^deb ' /etc/apt/sources.list 2>/dev/null; then
        sed -n 's/^deb /deb-src /p' /etc/apt/sources.list >"$at/parts/source.list"
    else
        die "neither $lists nor /etc/apt/sources.list names Debian's archives"
    fi
    options=(-q -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$at/parts" -o "Dir::State::lists=$at/lists"
             -o "Dir::Cache=$at/cache" -o Acquire::Retries=3)
    (cd "$at" && apt-get "${options[@]}" update && apt-get "${options[@]}" source --download-only highway) >&2
}

third_party() {
    local to="$1" package header at
    mkdir -p "$to/include" "$to/licenses"
    for header in "${HEADERS[@]}"; do cp -r "/usr/include/$header" "$to/include/"; done
    cp -r /usr/src/googletest "$to/googletest"
    highway_source
    mkdir "$to/highway"
    at="$(ls "$PWD"/build-bundle/source/highway_*.orig.tar.*)"
    tar -xf "$at" -C "$to/highway" --strip-components=1 --wildcards '*/hwy/*' --exclude '*_test.cc' --exclude '*/tests/*' --exclude '*/contrib/*' --exclude '*/examples/*'
    {
        printf '# Third-party software in this bundle\n\nAs Debian ships it; licenses/ has the copyright and the licence of each.\n\n'
        for package in "${PACKAGES[@]}"; do
            cp "/usr/share/doc/$package/copyright" "$to/licenses/$package"
            # shellcheck disable=SC2016
            dpkg-query -W -f '- ${Package} ${Version} (source package ${source:Package})\n' "$package"
        done
    } >"$to/README.md"
}

make_bundle() {
    local scratch
    git rev-parse --git-dir >/dev/null 2>&1 || die "this is no git checkout, so nothing says which files belong to the project"
    scratch="$(mktemp -d)"
    trap 'rm -rf "$scratch"' RETURN
    mkdir -p "$scratch/$NAME" dist
    git ls-files -z | tar -c --null -T - | tar -x -C "$scratch/$NAME"
    third_party "$scratch/$NAME/third_party"
    # The same bytes from the same commit.
    tar -c --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$(git log -1 --format=%ct)" -C "$scratch" "$NAME" |
        xz -T0 -6 >"$BUNDLE"
    list_bundle
}

list_bundle() {
    local names path size
    [[ -e "$BUNDLE" ]] || die "there is no $BUNDLE; make it with scripts/bundle.sh"
    size="$(stat -c %s "$BUNDLE")"
    ((size <= MOST_BYTES)) || die "$BUNDLE has $size bytes, more than $MOST_BYTES"
    names="$(tar -tf "$BUNDLE")"
    for path in CMakeLists.txt LICENSE scripts/gpu_check.py gradwire/hooks/device/cuda/integer.cu third_party/README.md \
                third_party/highway/hwy/highway.h third_party/highway/hwy/targets.cc third_party/googletest/CMakeLists.txt \
                third_party/include/spdlog/spdlog.h third_party/include/fmt/format.h third_party/include/asio.hpp \
                third_party/include/CLI/CLI.hpp third_party/include/nlohmann/json.hpp "${PACKAGES[@]/#/third_party/licenses/}"; do
        grep -qxF "$NAME/$path" <<<"$names" || die "$BUNDLE has no $path"
    done
    if grep -vE "^$NAME/" <<<"$names" || grep -E '/(build|\.venv|\.git)/|\.(so|a|o|whl)$' <<<"$names"; then
        die "$BUNDLE holds what does not belong there (above)"
    fi
    echo "bundle: $BUNDLE, $(wc -l <<<"$names") files, $size bytes"
}

# Covers the machine's copies of the carried libraries, and those that the bundle does without, for this mount namespace.
hide_libraries() {
    local path
    for path in /usr/include/{hwy,spdlog,fmt,asio,CLI,nlohmann,gtest,gmock,benchmark,openssl,gloo,ucp,ucs,uct} /usr/src/googletest \
                /usr/include/x86_64-linux-gnu/{openssl,mpi} /usr/lib/*/cmake /usr/lib/*/openmpi /usr/share/cmake/{CLI11,nlohmann_json,Gloo}; do
        if [[ -d "$path" ]]; then mount -t tmpfs none "$path"; fi
    done
    if [[ -e /usr/include/asio.hpp ]]; then mount --bind /dev/null /usr/include/asio.hpp; fi
    for path in /usr/include/{hwy/highway.h,spdlog/spdlog.h,fmt/format.h,openssl/hmac.h,gtest/gtest.h,nlohmann/json.hpp}; do
        if [[ -e "$path" ]]; then echo "bundle: $path is still in sight"; return 1; fi
    done
}

check_bundle() {
    local work torch targets=("$@")
    ((EUID == 0)) || die "check needs root, for a network and mounts of its own"
    work="${BUNDLE_WORK:-}"
    if [[ -z "$work" ]]; then
        work="$(mktemp -d)"
        # shellcheck disable=SC2064
        trap "rm -rf '$work'" EXIT
    fi
    torch="${GRADWIRE_TORCH_DIR:-$(.venv/bin/python -c 'import os, torch; print(os.path.dirname(torch.__file__))')}"
    mkdir -p "$work"
    tar -xf "$BUNDLE" -C "$work"
    export -f hide_libraries
    unshare --net --mount bash -euc 'mount --make-rprivate /
        hide_libraries
        ip link set lo up
        cd "$1"; torch="$2"; shift 2
        if (($# == 0)); then
            rm -rf build-gpu/report
            GRADWIRE_TORCH_DIR="$torch" python3 scripts/gpu_check.py --without-gpu --minutes 180 --jobs "${JOBS:-$(nproc)}" \
                --cmake=-DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON || failed=1
            cat build-gpu/report/gpu_check.md
            exit "${failed:-0}"
        fi
        cmake -G Ninja -S . -B build -DGRADWIRE_TORCH_DIR="$torch" -DGRADWIRE_PYTHON=OFF -DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON
        ninja -C build -j"${JOBS:-$(nproc)}" "$@"
        for test in build/bin/tests/*_test{,s}; do
            if [[ -x "$test" ]]; then timeout 600 "$test" --gtest_brief=1; fi
        done' bash "$work/$NAME" "$torch" "${targets[@]}"
    echo "bundle: built without a network and without the installed libraries, against $torch"
}

case "${1:-make}" in
    make) make_bundle ;;
    list) list_bundle ;;
    check) shift; check_bundle "$@" ;;
    *) sed -n '4,15p' "$0" >&2; exit 2 ;;
esac

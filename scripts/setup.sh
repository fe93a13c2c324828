#!/usr/bin/env bash
# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
# scripts/setup.sh GROUP...   installs what a group of make targets needs, and nothing that is there already.
#   build   compiler, CMake, Ninja and the libraries of the build and the tests
#   torch   .venv/ with the pinned libtorch wheel, unless GRADWIRE_TORCH_DIR or CMAKE_PREFIX_PATH names a libtorch
#   lint    clang-format, clang-tidy and the clang that the annotations and the fuzzers want
#   docs    .venv-docs/ with what `make docs` needs
#   package .venv-package/ with what `make wheel` needs; it sees the torch in .venv/
#   clients .venv-clients/ with the training libraries that tests/clients/ runs; it sees the torch in .venv/
#   browser what the tests look at gradwire.report's pages and traces with: Chromium, and .venv-browser/ with Perfetto's page; without
#           it they are skipped
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

BUILD_PACKAGES=(g++ cmake ninja-build ccache libhwy-dev libasio-dev libssl-dev libspdlog-dev libfmt-dev libcli11-dev
                nlohmann-json3-dev libgloo-dev libgtest-dev libgmock-dev libbenchmark-dev iproute2 openmpi-bin libopenmpi-dev libucx-dev pkg-config
                python3 python3-dev python3-venv)
LINT_PACKAGES=(clang-14 clang-format-14 clang-tidy-14 libclang-rt-14-dev)
BROWSER_PACKAGES=(chromium fonts-dejavu-core)

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# --- Debian packages -------------------------------------------------------------------------------------------------

missing_packages() {
    local package
    for package in "$@"; do
        [[ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" == installed ]] || echo "$package"
    done
}

apt_install() {
    local try
    export DEBIAN_FRONTEND=noninteractive
    for try in 1 2 3; do
        # One list that cannot be fetched is no reason to stop: the packages may well be in another.
        apt-get -q -o Acquire::Retries=3 update >&2 || say "apt-get update failed (try $try); going on with the lists there are"
        if apt-get -q -y -o Acquire::Retries=3 install --no-install-recommends "$@" >&2; then
            return 0
        fi
        say "apt-get install failed (try $try of 3)"
    done
    return 1
}

need_packages() {
    if ! command -v dpkg-query >/dev/null; then
        say "this is no Debian, so nothing is installed; make sure that you have what Debian calls: $*"
        return 0
    fi
    local missing
    mapfile -t missing < <(missing_packages "$@")
    ((${#missing[@]} == 0)) && return 0
    if ((EUID != 0)); then
        die "these packages are missing and only root can install them; please run:
    sudo apt-get update && sudo apt-get install --no-install-recommends ${missing[*]}"
    fi
    say "installing ${missing[*]}"
    apt_install "${missing[@]}" || die "could not install: ${missing[*]}"
}

# --- libtorch --------------------------------------------------------------------------------------------------------

is_libtorch() { [[ -e "$1/include/torch/headeronly/version.h" && -e "$1/lib/libtorch_cpu.so" ]]; }

# Whether the user named a libtorch of his own.
named_torch() {
    local folder
    if [[ -n "${GRADWIRE_TORCH_DIR:-}" ]]; then
        is_libtorch "$GRADWIRE_TORCH_DIR" && return 0
        die "GRADWIRE_TORCH_DIR=$GRADWIRE_TORCH_DIR is no libtorch: it needs include/torch/headeronly/version.h and lib/libtorch_cpu.so"
    fi
    while IFS= read -r folder; do
        [[ -n "$folder" ]] && is_libtorch "$folder" && return 0
    done < <(tr ':;' '\n\n' <<<"${CMAKE_PREFIX_PATH:-}")
    return 1
}

# Whether .venv/ holds every pinned requirement. RECORD is the last file pip writes, so half an installation does not count.
# Only file names are looked at: this runs before every make target.
venv_is_complete() {
    [[ -x .venv/bin/python ]] || return 1
    local requirement pattern
    while IFS= read -r requirement; do
        [[ -z "$requirement" || "$requirement" == \#* ]] && continue
        case "$requirement" in
            *==*) pattern="${requirement%%==*}-${requirement##*==}" ;;
            *) pattern="$requirement-[0-9]" ;;
        esac
        compgen -G ".venv/lib/python3*/site-packages/$pattern*.dist-info/RECORD" >/dev/null || return 1
    done <scripts/requirements.txt
}

# A Python that can make environments: the one on PATH (which may be pyenv's or conda's), else Debian's.
usable_python() {
    local python
    for python in "${PYTHON:-python3}" /usr/bin/python3; do
        if "$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            echo "$python"
            return 0
        fi
    done
    return 1
}

need_torch() {
    named_torch && return 0
    venv_is_complete && return 0
    local python try
    if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
        python="$(usable_python)" || die "no Python 3.10 or newer with the modules venv and ensurepip (Debian: python3-venv)"
        say "making .venv with $python"
        "$python" -m venv --clear .venv
    fi
    say "installing $(grep -v '^#' scripts/requirements.txt | paste -sd' ') into .venv"
    for try in 1 2 3; do
        if .venv/bin/python -m pip install --disable-pip-version-check -q -r scripts/requirements.txt >&2; then
            venv_is_complete || die "pip succeeded, but .venv lacks one of: $(grep -v '^#' scripts/requirements.txt | paste -sd' ')"
            return 0
        fi
        say "pip install failed (try $try of 3)"
    done
    die "could not install torch; to use one that you have, name it: make GRADWIRE_TORCH_DIR=<folder with include/ and lib/>"
}

# --- Environments for tools ------------------------------------------------------------------------------------------

# need_tools NAME [OPTION of pip install...]: the environment .venv-NAME with what scripts/requirements-NAME.txt names. A copy of that
# file is written last, so half an installation does not count.
need_tools() {
    local folder=".venv-$1" wanted="scripts/requirements-$1.txt" python try
    shift
    cmp -s "$wanted" "$folder/requirements.txt" && return 0
    python=.venv/bin/python
    [[ -x "$python" ]] || python="$(usable_python)" || die "no Python 3.10 or newer with the modules venv and ensurepip (Debian: python3-venv)"
    say "making $folder with $python"
    "$python" -m venv --clear "$folder"
    see_torch "$folder"
    for try in 1 2 3; do
        if build_tools "$folder" "$@" >&2 &&
            "$folder/bin/python" -m pip install --disable-pip-version-check -q "$@" -r "$wanted" >&2; then
            cp "$wanted" "$folder/requirements.txt"
            return 0
        fi
        say "pip install failed (try $try of 3)"
    done
    die "could not install the tools that $wanted names"
}

# Without isolation, packages are built with the setuptools of FOLDER, and that of a new environment may be too old to make a wheel.
build_tools() {
    local folder="$1"
    shift
    [[ " $* " != *" --no-build-isolation "* ]] ||
        "$folder/bin/python" -m pip install --disable-pip-version-check -q --upgrade 'setuptools>=70.1'
}

# The packages of .venv are visible in FOLDER, so that torch is not installed twice and is the one that gradwire was built for.
see_torch() {
    local site
    site="$(echo "$PWD"/.venv/lib/python3*/site-packages)"
    if [[ -d "$site" ]]; then echo "$site" >"$(echo "$1"/lib/python3*/site-packages)/torch-of-venv.pth"; fi
}

# DeepSpeed has no wheel: --no-build-isolation lets its set-up find torch. DS_BUILD_OPS=0: it compiles when it is used.
need_clients() {
    need_torch
    [[ -x .venv/bin/python ]] || die "the training libraries are installed beside .venv's torch, and there is no .venv"
    DS_BUILD_OPS=0 need_tools clients --no-build-isolation
}

(($# > 0)) || die "usage: scripts/setup.sh build|torch|lint|docs|package|clients|browser ..."
packages=() torch=no tools=()
for group in "$@"; do
    case "$group" in
        build) packages+=("${BUILD_PACKAGES[@]}") ;;
        lint) packages+=("${LINT_PACKAGES[@]}") ;;
        browser) packages+=("${BROWSER_PACKAGES[@]}") tools+=(browser) ;;
        torch) torch=yes ;;
        docs | package | clients) tools+=("$group") ;;
        *) die "no group '$group'; there are build, torch, lint, docs, package, clients and browser" ;;
    esac
done
# Where Python can make environments already, pip needs none of the packages, and both install at the same time.
torch_job=
if [[ "$torch" == yes ]] && ((${#packages[@]} > 0)) && ! venv_is_complete && usable_python >/dev/null; then
    need_torch &
    torch_job=$!
    # A pip that goes on alone would be in the way of the next one.
    trap 'wait "$torch_job" || true' EXIT
fi
if ((${#packages[@]} > 0)); then need_packages "${packages[@]}"; fi
if [[ -n "$torch_job" ]]; then
    wait "$torch_job" || exit 1
    trap - EXIT
elif [[ "$torch" == yes ]]; then
    need_torch
fi
for group in "${tools[@]}"; do
    if [[ "$group" == clients ]]; then need_clients; else need_tools "$group"; fi
done

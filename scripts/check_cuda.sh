#!/usr/bin/env bash
# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
# scripts/check_cuda.sh [kernels|setup|compile|build]   what can be checked of CUDA on a machine without a GPU.
#   kernels  the codecs' kernels (*.cu) with nvcc, for the GPUs in GRADWIRE_CUDA_ARCHITECTURES (80 90), warnings as errors; no torch,
#            seconds. Without nvcc it says so and succeeds. CI runs this one.
#   setup    a folder with the pinned libtorch as CUDA build, and CUDA's and NCCL's libraries and headers (5 GB on disk, through pip)
#   compile  nccl.cc (the backend nccl) alone against those headers, with GCC and, where there is one, clang 14 (the default, with setup)
#   build    all of the library and char_lm against that libtorch, in build-cuda/, and char_lm on the CPU
# GRADWIRE_CUDA_SITE names the folder; .cuda-site/ here otherwise. All but kernels run by hand: too much to fetch for every run of CI.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

SITE="${GRADWIRE_CUDA_SITE:-$PWD/.cuda-site}"
PYTHON="${PYTHON:-.venv/bin/python}"
TORCH=2.13.0
# Headers that torch's own include and pip does not install beside it; of the CUDA that this torch was built with.
HEADERS=("nvidia-cuda-crt>=13.0,<13.1" "nvidia-cuda-cccl>=13.0,<13.1")

# nvcc on PATH, or where CUDA's own installer puts it.
find_nvcc() {
    command -v nvcc && return
    local place
    for place in "${CUDA_HOME:-}" /usr/local/cuda; do
        [[ -x "$place/bin/nvcc" ]] && echo "$place/bin/nvcc" && return
    done
    return 1
}

# -fmad=false and --expt-relaxed-constexpr as in gradwire/hooks/device/cuda/CMakeLists.txt.
kernels() {
    local nvcc source architecture flags targets=() sources=()
    if ! nvcc="$(find_nvcc)"; then
        echo "check_cuda: there is no nvcc here, so the CUDA kernels were not compiled"
        return
    fi
    flags=(-std=c++20 -O3 -fmad=false --expt-relaxed-constexpr -Werror all-warnings -Xcompiler -Wall,-Wextra,-Werror,-fPIC -I.)
    for architecture in ${GRADWIRE_CUDA_ARCHITECTURES:-80 90}; do
        targets+=(-gencode "arch=compute_$architecture,code=sm_$architecture")
    done
    mapfile -t sources < <(find gradwire -name '*.cu' | sort)
    ((${#sources[@]} > 0)) || { echo "check_cuda: there is no CUDA source"; return 1; }
    objects="$(mktemp -d)"
    trap 'rm -rf "$objects"' EXIT
    for source in "${sources[@]}"; do
        "$nvcc" "${flags[@]}" "${targets[@]}" -c "$source" -o "$objects/kernels.o"
        # nvcc compiles a read of a constexpr array, which only the host's memory has, into a trap, without a word.
        "$nvcc" "${flags[@]}" -arch "compute_${architecture}" -ptx "$source" -o "$objects/kernels.ptx"
        if grep -n 'trap;' "$objects/kernels.ptx"; then
            echo "check_cuda: a kernel of $source ends with a trap (above): it uses what only the host has, such as a constexpr array"
            return 1
        fi
        echo "check_cuda: $source compiles for ${GRADWIRE_CUDA_ARCHITECTURES:-80 90}"
    done
    "$nvcc" --version | grep release
}

setup() {
    [[ -e "$SITE/torch/lib/libtorch_cuda.so" && -e "$SITE/nvidia/cu13/include/crt/host_config.h" ]] && return
    # Isolated: a machine whose pip prefers a torch without CUDA asks the public index here all the same.
    "$PYTHON" -m pip --isolated install -q --target "$SITE" "torch==$TORCH" "${HEADERS[@]}"
}

compile() {
    local compiler
    for compiler in g++ clang++-14; do
        command -v "$compiler" >/dev/null || continue
        "$compiler" -std=c++20 -fsyntax-only -Wall -Wextra -Werror -I. -isystem "$SITE/torch/include" \
            -isystem "$SITE/torch/include/torch/csrc/api/include" -isystem "$SITE/nvidia/cu13/include" \
            -isystem "$SITE/nvidia/nccl/include" gradwire/process_group/c10d/nccl.cc
        echo "check_cuda: nccl.cc compiles with $compiler against torch $TORCH with CUDA"
    done
}

build() {
    cmake -G Ninja -S . -B build-cuda -DGRADWIRE_TORCH_DIR="$SITE/torch" -DGRADWIRE_CUDA=ON -DGRADWIRE_TESTS=OFF -DGRADWIRE_PYTHON=OFF
    ninja -C build-cuda gradwire-run char_lm
    scripts/check_thread_locals.py build-cuda/lib
    build-cuda/bin/gradwire-run -n 2 build-cuda/bin/char_lm --steps 5
}

case "${1:-compile}" in
    kernels) kernels ;;
    setup) setup ;;
    compile) setup; compile ;;
    build) setup; build ;;
    *) sed -n '4,10p' "$0" >&2; exit 2 ;;
esac

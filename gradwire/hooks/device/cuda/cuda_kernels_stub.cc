// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Stands for cuda_kernels.cc where nvcc was not found, or libtorch has no CUDA.
#include "gradwire/hooks/device/codec_kernels_internal.h"

namespace gradwire::internal {

const CodecKernels* find_cuda_kernels(const at::Device&) { return nullptr; }

}  // namespace gradwire::internal

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What the device can run, and what CUDA says of an error.
#include <cuda_runtime_api.h>

#include "gradwire/hooks/device/cuda/launch_internal.h"

namespace gradwire::cuda {
namespace {

__global__ void nothing() {}

}  // namespace

bool runs_on(int device) {
  int before = 0;
  if (cudaGetDevice(&before) != cudaSuccess || cudaSetDevice(device) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  cudaFuncAttributes attributes;
  const bool runs = cudaFuncGetAttributes(&attributes, nothing) == cudaSuccess;
  static_cast<void>(cudaGetLastError());  // forgets the error, which the next call of anybody would report
  return cudaSetDevice(before) == cudaSuccess && runs;
}

const char* error_text(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }

}  // namespace gradwire::cuda

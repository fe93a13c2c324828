// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What the device can run, and what CUDA says of an error.
#include <cuda_runtime_api.h>

#include "gradwire/hooks/device/cuda/launch_internal.h"

namespace gradwire::cuda {
namespace {

__global__ void nothing() {}

}  // namespace

// From CUDA 12 on, cudaSetDevice() makes a context on the device. So nothing is set back here to the device before,
// which may be GPU 0 on a rank that uses another: the caller's guard knows whether that device has a context.
int use_device(int device) { return cudaSetDevice(device); }

Runs runs_on(int device) {
  cudaFuncAttributes attributes;
  cudaError_t error = cudaSetDevice(device);
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, nothing);
  static_cast<void>(cudaGetLastError());  // forgets the error, which the next call of anybody would report
  switch (error) {
    case cudaSuccess:
      return Runs::yes;
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorInvalidPtx:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorJitCompilerNotFound:
    case cudaErrorJitCompilationDisabled:
      return Runs::no;
    default:
      return Runs::unknown;
  }
}

const char* error_text(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }

}  // namespace gradwire::cuda

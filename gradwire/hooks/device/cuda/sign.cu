// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// sign. A thread has a group of 8 values. Memory-bound time a value: 4 1/8 bytes over the bandwidth, encoding and
// decoding (4 more where a sum is read).
#include "gradwire/hooks/device/cuda/sign_internal.h"

#include "gradwire/hooks/device/cuda/grid.cuh"
#include "gradwire/hooks/device/cuda/launch_internal.h"

namespace gradwire::cuda {
namespace {

// The mark is 0 before.
__global__ void encode_sign_groups(const float* values, std::size_t count, std::size_t groups, std::uint8_t* bytes) {
  for (std::size_t group = thread_index(); group < groups; group += thread_count()) {
    if (!encode_sign_group(values, count, bytes, group)) bytes[0] = 1;
  }
}

__global__ void decode_sign_groups(const std::uint8_t* bytes, std::size_t count, std::size_t groups, const float* sum,
                                   float* values) {
  for (std::size_t group = thread_index(); group < groups; group += thread_count())
    decode_sign_group(bytes, count, sum, values, group);
}

}  // namespace

int encode_sign(const float* values, std::size_t count, std::uint8_t* bytes, Stream stream) {
  if (const cudaError_t failed = cudaMemsetAsync(bytes, 0, 1, stream); failed != cudaSuccess) return failed;
  const std::size_t groups = groups_in(count);
  encode_sign_groups<<<blocks_for(groups, kThreads), kThreads, 0, stream>>>(values, count, groups, bytes);
  return cudaGetLastError();
}

int decode_sign(const std::uint8_t* bytes, std::size_t count, const float* sum, float* values, Stream stream) {
  const std::size_t groups = groups_in(count);
  decode_sign_groups<<<blocks_for(groups, kThreads), kThreads, 0, stream>>>(bytes, count, groups, sum, values);
  return cudaGetLastError();
}

}  // namespace gradwire::cuda

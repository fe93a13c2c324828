// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// fp16, bf16. A thread has a group of 8 values. Memory-bound time a value: 6 bytes over the bandwidth, encoding and
// decoding (4 more where a sum is read).
#include "gradwire/hooks/device/cuda/cast_internal.h"

#include "gradwire/hooks/device/cuda/grid.cuh"
#include "gradwire/hooks/device/cuda/launch_internal.h"

namespace gradwire::cuda {
namespace {

template <class Type>
__global__ void encode_casts(const float* values, std::size_t count, std::uint8_t* bytes) {
  for (std::size_t group = thread_index(); group < groups_in(count); group += thread_count())
    encode_cast_group<Type>(values, count, bytes, group);
}

template <class Type>
__global__ void decode_casts(const std::uint8_t* bytes, std::size_t count, const float* sum, float* values) {
  for (std::size_t group = thread_index(); group < groups_in(count); group += thread_count())
    decode_cast_group<Type>(bytes, count, sum, values, group);
}

}  // namespace

int encode_cast(Half to, const float* values, std::size_t count, std::uint8_t* bytes, Stream stream) {
  const auto kernel = to == Half::f16 ? encode_casts<F16> : encode_casts<Bf16>;
  kernel<<<blocks_for(groups_in(count), kThreads), kThreads, 0, stream>>>(values, count, bytes);
  return cudaGetLastError();
}

int decode_cast(Half from, const std::uint8_t* bytes, std::size_t count, const float* sum, float* values,
                Stream stream) {
  const auto kernel = from == Half::f16 ? decode_casts<F16> : decode_casts<Bf16>;
  kernel<<<blocks_for(groups_in(count), kThreads), kThreads, 0, stream>>>(bytes, count, sum, values);
  return cudaGetLastError();
}

}  // namespace gradwire::cuda

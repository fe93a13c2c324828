// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// one_bit. A warp has a row: 16 lanes add the partial sums in the CPU's order, then all lanes pack the signs, which are
// in the cache by then. Memory-bound time a value: 4 1/8 bytes over the bandwidth, encoding and decoding (4 more where
// a sum is read). A row is read by one warp, so rows of far more than the default block leave most of the device idle.
#include "gradwire/hooks/device/cuda/one_bit_internal.h"
#include "gradwire/hooks/device/cuda/rows.cuh"

namespace gradwire::cuda {
namespace {

// In halves: 8 to 8, 4 to 4, 2 to 2, 1 to 1. The sum is lane 0's.
__device__ float add_halves(float partial) {
  for (unsigned half = kPartialSums / 2; half > 0; half /= 2) partial += __shfl_down_sync(kWholeWarp, partial, half);
  return __shfl_sync(kWholeWarp, partial, 0);
}

__global__ void encode_one_bit_rows(Rows rows, const float* values, std::uint8_t* bytes) {
  auto* const scales = reinterpret_cast<float*>(bytes);
  for (std::size_t row = warp_index(); row < rows.number(); row += warp_count()) {
    const std::size_t begin = rows.begin(row), length = rows.length(row);
    const float mine = lane_index() < kPartialSums ? partial_sum(values + begin, length, lane_index()) : 0.0f;
    const float scale = add_halves(mine) / static_cast<float>(length);
    if (lane_index() == 0) scales[row] = scale;
    encode_values(OneBitFormat{}, values, begin, length, scale, bytes + 4 * rows.number(), lane_index(), kWarp);
  }
}

}  // namespace

int encode_one_bit(Rows rows, const float* values, std::uint8_t* bytes, Stream stream) {
  encode_one_bit_rows<<<blocks_for(rows.number(), kWarps), kThreads, 0, stream>>>(rows, values, bytes);
  return cudaGetLastError();
}

int decode_one_bit(Rows rows, const std::uint8_t* bytes, const float* sum, float* values, Stream stream) {
  return launch_decode(OneBitFormat{}, rows, bytes, sum, values, stream);
}

}  // namespace gradwire::cuda

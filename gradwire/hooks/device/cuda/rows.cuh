// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The kernels of formats whose scale is made of the largest magnitude of a row (formats_internal.h).
//
// Encoding, rows up to kHeldRow: a warp reads its row into registers, agrees on the scale, and encodes.
// Encoding, rows up to kRowOfAWarp: a warp reads its row, agrees on the scale, and reads the row again, now from the
// cache. Memory-bound time a value, of both: (4 + bits / 8) bytes over the bandwidth; a copy of the values moves 8.
// Encoding, longer rows: slices of rows find the largest magnitude, then the slices are read again to be encoded:
// (8 + bits / 8) bytes over the bandwidth.
// Decoding: (bits / 8 + 4) bytes a value over the bandwidth, 4 more where a sum is read.
#pragma once

#include "gradwire/hooks/device/cuda/formats_internal.h"
#include "gradwire/hooks/device/cuda/grid.cuh"
#include "gradwire/hooks/device/cuda/launch_internal.h"

namespace gradwire::cuda {

constexpr std::size_t kGroupsOfAWarp = kWarp * kGroup;  // values
constexpr std::size_t kHeldRow = 4 * kGroupsOfAWarp;    // values: 32 registers of each lane
constexpr std::size_t kRowOfAWarp = 8192;  // values: 32 KiB, so that a row of each warp of a block fits into the caches
constexpr std::size_t kSlice = 4096;       // values; a whole number of groups

// For rows of at most `Groups` times kGroupsOfAWarp values.
template <unsigned Groups, class Format>
__global__ void encode_held_rows(Format format, Rows rows, const float* values, std::uint8_t* bytes) {
  auto* const scales = reinterpret_cast<float*>(bytes);
  std::uint8_t* const codes = bytes + 4 * rows.number();
  for (std::size_t row = warp_index(); row < rows.number(); row += warp_count()) {
    const std::size_t begin = rows.begin(row), length = rows.length(row);
    float held[Groups][kGroup];
    std::uint32_t largest = 0;
#pragma unroll
    for (unsigned i = 0; i < Groups; ++i) {
      const std::size_t first = kGroup * (lane_index() + std::size_t{kWarp} * i);
      load_group(values + begin + first, first < length ? group_size(first, length) : 0, held[i]);
      for (const float value : held[i]) {
        const std::uint32_t magnitude = format.magnitude(value);
        largest = magnitude > largest ? magnitude : largest;
      }
    }
    const float scale = format.scale(warp_largest(largest));
    if (lane_index() == 0) scales[row] = scale;
#pragma unroll
    for (unsigned i = 0; i < Groups; ++i) {
      const std::size_t first = kGroup * (lane_index() + std::size_t{kWarp} * i);
      if (first >= length) continue;
      store_codes(codes + (begin + first) * static_cast<std::size_t>(format.bits) / 8, group_size(first, length),
                  format.bits, format.encode(held[i], scale, begin + first));
    }
  }
}

template <class Format>
__global__ void encode_rows(Format format, Rows rows, const float* values, std::uint8_t* bytes) {
  auto* const scales = reinterpret_cast<float*>(bytes);
  std::uint8_t* const codes = bytes + 4 * rows.number();
  for (std::size_t row = warp_index(); row < rows.number(); row += warp_count()) {
    const std::size_t begin = rows.begin(row), length = rows.length(row);
    const float scale = format.scale(warp_largest(largest_of(format, values + begin, length, lane_index(), kWarp)));
    if (lane_index() == 0) scales[row] = scale;
    encode_values(format, values, begin, length, scale, codes, lane_index(), kWarp);
  }
}

// The slices of rows.
struct Slice {
  std::size_t row;
  std::size_t begin;
  std::size_t length;
};
__host__ __device__ inline std::size_t slices_in_row(Rows rows) { return (rows.block + kSlice - 1) / kSlice; }
__device__ inline Slice slice_of(Rows rows, std::size_t slice) {
  const std::size_t row = slice / slices_in_row(rows);
  const std::size_t within = kSlice * (slice % slices_in_row(rows));
  if (within >= rows.length(row)) return {row, 0, 0};
  const std::size_t left = rows.length(row) - within;
  return {row, rows.begin(row) + within, left < kSlice ? left : kSlice};
}

// `largest` begins with zeros.
template <class Format>
__global__ void find_largest(Format format, Rows rows, const float* values, unsigned* largest) {
  const std::size_t slices = rows.number() * slices_in_row(rows);
  for (std::size_t i = warp_index(); i < slices; i += warp_count()) {
    const Slice slice = slice_of(rows, i);
    const std::uint32_t found =
        warp_largest(largest_of(format, values + slice.begin, slice.length, lane_index(), kWarp));
    if (lane_index() == 0) atomicMax(largest + slice.row, found);
  }
}

template <class Format>
__global__ void finish_scales(Format format, std::size_t number, unsigned* largest) {
  for (std::size_t row = thread_index(); row < number; row += thread_count())
    largest[row] = std::bit_cast<std::uint32_t>(format.scale(largest[row]));
}

template <class Format>
__global__ void encode_slices(Format format, Rows rows, const float* values, std::uint8_t* bytes) {
  const std::size_t slices = rows.number() * slices_in_row(rows);
  for (std::size_t i = warp_index(); i < slices; i += warp_count()) {
    const Slice slice = slice_of(rows, i);
    encode_values(format, values, slice.begin, slice.length, load_float(bytes + 4 * slice.row),
                  bytes + 4 * rows.number(), lane_index(), kWarp);
  }
}

template <class Format>
__global__ void decode_groups(Format format, Rows rows, const std::uint8_t* bytes, const float* sum, float* values) {
  const std::size_t groups = rows.number() * rows.groups_in_row();
  for (std::size_t group = thread_index(); group < groups; group += thread_count())
    decode_group(format, rows, bytes, sum, values, group);
}

template <class Format>
int launch_encode(const Format& format, Rows rows, const float* values, std::uint8_t* bytes, cudaStream_t stream) {
  if (rows.block <= kRowOfAWarp) {
    const auto kernel = rows.block <= kGroupsOfAWarp       ? encode_held_rows<1, Format>
                        : rows.block <= 2 * kGroupsOfAWarp ? encode_held_rows<2, Format>
                        : rows.block <= kHeldRow           ? encode_held_rows<4, Format>
                                                           : encode_rows<Format>;
    kernel<<<blocks_for(rows.number(), kWarps), kThreads, 0, stream>>>(format, rows, values, bytes);
    return cudaGetLastError();
  }
  auto* const largest = reinterpret_cast<unsigned*>(bytes);
  if (const cudaError_t failed = cudaMemsetAsync(largest, 0, 4 * rows.number(), stream); failed != cudaSuccess)
    return failed;
  const unsigned blocks = blocks_for(rows.number() * slices_in_row(rows), kWarps);
  find_largest<<<blocks, kThreads, 0, stream>>>(format, rows, values, largest);
  finish_scales<<<blocks_for(rows.number(), kThreads), kThreads, 0, stream>>>(format, rows.number(), largest);
  encode_slices<<<blocks, kThreads, 0, stream>>>(format, rows, values, bytes);
  return cudaGetLastError();
}

template <class Format>
int launch_decode(const Format& format, Rows rows, const std::uint8_t* bytes, const float* sum, float* values,
                  cudaStream_t stream) {
  const unsigned blocks = blocks_for(rows.number() * rows.groups_in_row(), kThreads);
  decode_groups<<<blocks, kThreads, 0, stream>>>(format, rows, bytes, sum, values);
  return cudaGetLastError();
}

}  // namespace gradwire::cuda

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How work is cut into blocks of threads, and what a warp does together.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace gradwire::cuda {

constexpr unsigned kThreads = 256;  // of a block
constexpr unsigned kWarp = 32;
constexpr unsigned kWarps = kThreads / kWarp;  // of a block
constexpr unsigned kWholeWarp = 0xffffffffu;

// Enough blocks to fill any device several times; each thread then takes every (blocks * threads)-th piece of work.
constexpr std::size_t kMostBlocks = 8192;

// The number of blocks in which each has `per_block` of `work` pieces.
inline unsigned blocks_for(std::size_t work, std::size_t per_block) {
  const std::size_t blocks = (work + per_block - 1) / per_block;
  return static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks);
}

__device__ inline std::size_t thread_index() { return std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ inline std::size_t thread_count() { return std::size_t{gridDim.x} * blockDim.x; }
__device__ inline std::size_t warp_index() { return thread_index() / kWarp; }
__device__ inline std::size_t warp_count() { return thread_count() / kWarp; }
__device__ inline unsigned lane_index() { return threadIdx.x % kWarp; }

__device__ inline std::uint32_t warp_largest(std::uint32_t value) {
  for (unsigned half = kWarp / 2; half > 0; half /= 2) {
    const std::uint32_t other = __shfl_xor_sync(kWholeWarp, value, half);
    value = other > value ? other : value;
  }
  return value;
}

}  // namespace gradwire::cuda

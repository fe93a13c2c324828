// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// top_k, dgc (top_k_internal.h says how the values are chosen). Encoding reads the values five times: for three
// histograms, to count what each tile keeps, and to write that. Memory-bound time a value: 20 bytes over the bandwidth,
// and 8 for every value that is kept. Decoding: 4 bytes a value over the bandwidth (8 where a sum is read), and about
// 12 for every pair.
#include "gradwire/hooks/device/cuda/top_k_internal.h"

#include "gradwire/hooks/device/cuda/grid.cuh"
#include "gradwire/hooks/device/cuda/launch_internal.h"

namespace gradwire::cuda {
namespace {

constexpr std::size_t kTile = kThreads * kGroup;  // values of a block of threads
constexpr unsigned kScanThreads = 1024;
// Enough to fill a device; more would spend their time on histograms of few values.
constexpr unsigned kMostHistogramBlocks = 1024;

std::size_t tiles_in(std::size_t count) { return (count + kTile - 1) / kTile; }

// What lies at the front of the workspace; a Before for every tile follows.
struct Work {
  Bar bar;
  std::uint32_t histogram[kDigits][kBins];
};

// The magnitudes of gradients share few bins of the first digit, so pairs of warps have histograms of their own.
__global__ void count_digit(const float* values, std::size_t count, int digit, Work* work) {
  constexpr unsigned kCopies = kWarps / 2;
  __shared__ std::uint32_t bins[kCopies][kBins];
  for (unsigned bin = threadIdx.x; bin < kCopies * kBins; bin += kThreads) bins[bin / kBins][bin % kBins] = 0;
  __syncthreads();
  const Bar bar = work->bar;
  std::uint32_t* const mine = bins[threadIdx.x / kWarp % kCopies];
  for (std::size_t group = thread_index(); group < groups_in(count); group += thread_count()) {
    const unsigned size = group_size(kGroup * group, count);
    float loaded[kGroup];
    load_group(values + kGroup * group, size, loaded);
    for (unsigned i = 0; i < size; ++i) {
      const unsigned bin = bin_of(kernels::magnitude_bits_of(loaded[i]), digit, bar);
      if (bin < kBins) atomicAdd(mine + bin, 1u);
    }
  }
  __syncthreads();
  for (unsigned bin = threadIdx.x; bin < kBins; bin += kThreads) {
    std::uint32_t sum = 0;
    for (unsigned copy = 0; copy < kCopies; ++copy) sum += bins[copy][bin];
    if (sum != 0) atomicAdd(work->histogram[digit] + bin, sum);
  }
}

// One block of threads, each of which adds the bins of a range; one thread then finds the range, and in it the bin.
__global__ void choose_digit(int digit, Work* work) {
  constexpr unsigned kRange = kBins / kThreads;
  __shared__ std::uint32_t bins[kBins];
  __shared__ std::uint32_t ranges[kThreads];
  std::uint32_t sum = 0;
  for (unsigned i = 0; i < kRange; ++i) {
    const unsigned bin = kRange * threadIdx.x + i;
    bins[bin] = work->histogram[digit][bin];
    sum += bins[bin];
  }
  ranges[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  Bar bar = work->bar;
  unsigned range = kThreads - 1;
  for (; range > 0 && ranges[range] < bar.wanted; --range) bar.wanted -= ranges[range];
  for (unsigned i = kRange; i > 0; --i) {
    const unsigned bin = kRange * range + i - 1;
    if (take_bin(bar, digit, bin, bins[bin])) break;
  }
  work->bar = bar;
}

// The group of a thread in a tile.
struct Loaded {
  std::size_t first;
  unsigned size;  // 0: beyond the values
  float values[kGroup];
};
__device__ Loaded load_of_tile(const float* values, std::size_t count, std::size_t tile) {
  Loaded loaded{kTile * tile + kGroup * threadIdx.x, 0, {}};
  if (loaded.first < count) {
    loaded.size = group_size(loaded.first, count);
    load_group(values + loaded.first, loaded.size, loaded.values);
  }
  return loaded;
}
__device__ Before count_loaded(const Loaded& loaded, const Bar& bar) {
  Before sum{0, 0};
  for (unsigned i = 0; i < loaded.size; ++i) count_value(kernels::magnitude_bits_of(loaded.values[i]), bar, sum);
  return sum;
}

// The sum of what comes before this thread in its block of `Threads`, and of the whole block in `total`.
template <unsigned Threads>
__device__ Before scan_block(Before mine, Before& total) {
  __shared__ Before of_warps[kWarp];
  Before sum = mine;
  for (unsigned step = 1; step < kWarp; step *= 2) {
    const std::uint32_t above = __shfl_up_sync(kWholeWarp, sum.above, step);
    const std::uint32_t equal = __shfl_up_sync(kWholeWarp, sum.equal, step);
    if (lane_index() >= step) sum = {sum.above + above, sum.equal + equal};
  }
  const unsigned warp = threadIdx.x / kWarp;
  if (lane_index() == kWarp - 1) of_warps[warp] = sum;
  __syncthreads();
  Before before{0, 0};
  total = {0, 0};
  for (unsigned i = 0; i < Threads / kWarp; ++i) {
    if (i == warp) before = total;
    total = {total.above + of_warps[i].above, total.equal + of_warps[i].equal};
  }
  __syncthreads();  // of_warps is written again by the next call
  return {before.above + sum.above - mine.above, before.equal + sum.equal - mine.equal};
}

__global__ void count_tiles(const float* values, std::size_t count, std::size_t tiles, const Work* work,
                            Before* of_tiles) {
  for (std::size_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    Before total;
    scan_block<kThreads>(count_loaded(load_of_tile(values, count, tile), work->bar), total);
    if (threadIdx.x == 0) of_tiles[tile] = total;
  }
}

// One block of threads: of_tiles[i] becomes the sum of what comes before tile i.
__global__ void scan_tiles(std::size_t tiles, Before* of_tiles) {
  Before before{0, 0};
  for (std::size_t first = 0; first < tiles; first += kScanThreads) {
    const std::size_t tile = first + threadIdx.x;
    Before total;
    const Before mine = tile < tiles ? of_tiles[tile] : Before{0, 0};
    const Before within = scan_block<kScanThreads>(mine, total);
    if (tile < tiles) of_tiles[tile] = {before.above + within.above, before.equal + within.equal};
    before = {before.above + total.above, before.equal + total.equal};
  }
}

__global__ void write_chosen(const float* values, std::size_t count, std::size_t tiles, const Work* work,
                             const Before* of_tiles, std::uint8_t* pairs) {
  const Bar bar = work->bar;
  for (std::size_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const Loaded loaded = load_of_tile(values, count, tile);
    Before total;
    Before before = scan_block<kThreads>(count_loaded(loaded, bar), total);
    before = {before.above + of_tiles[tile].above, before.equal + of_tiles[tile].equal};
    for (unsigned i = 0; i < loaded.size; ++i) {
      write_if_chosen(loaded.values[i], loaded.first + i, bar, before, pairs);
      count_value(kernels::magnitude_bits_of(loaded.values[i]), bar, before);
    }
  }
}

__global__ void start_selection(std::uint32_t kept, Work* work) {
  if (threadIdx.x == 0) work->bar = {0, kept};
  for (unsigned i = threadIdx.x; i < kDigits * kBins; i += kThreads) work->histogram[i / kBins][i % kBins] = 0;
}

// Zeros, or the sums, to which a zero is added as for every value that no pair names: -0 becomes 0. A value at a time:
// a thread that stores a group writes half a sector of memory twice, and this took 1.7 times as long on an H200.
__global__ void begin_pairs(const float* sum, float* values, std::size_t count) {
  for (std::size_t i = thread_index(); i < count; i += thread_count())
    values[i] = sum == nullptr ? 0.0f : sum[i] + 0.0f;
}

__global__ void put_pairs(const std::uint8_t* bytes, std::size_t pairs, const float* sum, float* values,
                          std::size_t count) {
  for (std::size_t pair = thread_index(); pair < pairs; pair += thread_count())
    put_pair(bytes, pair, sum, values, count);
}

}  // namespace

std::size_t top_k_workspace(std::size_t count) { return sizeof(Work) + sizeof(Before) * tiles_in(count); }

int encode_top_k(const float* values, std::size_t count, std::size_t kept, void* workspace, std::uint8_t* bytes,
                 Stream stream) {
  auto* const work = static_cast<Work*>(workspace);
  auto* const of_tiles = reinterpret_cast<Before*>(work + 1);
  const std::size_t tiles = tiles_in(count);
  const unsigned blocks = blocks_for(tiles, 1);
  const unsigned histogram_blocks = blocks < kMostHistogramBlocks ? blocks : kMostHistogramBlocks;
  start_selection<<<1, kThreads, 0, stream>>>(static_cast<std::uint32_t>(kept), work);
  for (int digit = 0; digit < kDigits; ++digit) {
    count_digit<<<histogram_blocks, kThreads, 0, stream>>>(values, count, digit, work);
    choose_digit<<<1, kThreads, 0, stream>>>(digit, work);
  }
  count_tiles<<<blocks, kThreads, 0, stream>>>(values, count, tiles, work, of_tiles);
  scan_tiles<<<1, kScanThreads, 0, stream>>>(tiles, of_tiles);
  write_chosen<<<blocks, kThreads, 0, stream>>>(values, count, tiles, work, of_tiles, bytes);
  return cudaGetLastError();
}

int decode_pairs(const std::uint8_t* bytes, std::size_t pairs, std::size_t count, const float* sum, float* values,
                 Stream stream) {
  begin_pairs<<<blocks_for(count, kThreads), kThreads, 0, stream>>>(sum, values, count);
  if (pairs != 0) put_pairs<<<blocks_for(pairs, kThreads), kThreads, 0, stream>>>(bytes, pairs, sum, values, count);
  return cudaGetLastError();
}

}  // namespace gradwire::cuda

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Reduce-scatter, and the steps that all_reduce and reduce share with it.
//
// Terms: N ranks, B bytes of result a rank.
//
// Algorithm for short blocks (B <= short_block()) in wide worlds: Bruck's exchange of blocks (share.cc), after which
// each rank has all inputs for its part and combines them in rank order. Steps: ceil(log2 N). Staging: 3 N B.
//
// Algorithm else: direct, in chunks.
// Steps: for each chunk 1. Every rank sends each other rank that one's part of its input and receives N - 1 inputs for
// its own part. 2. It combines the N inputs in rank order in one pass over memory.
// Step 1 of the next chunk is under way during step 2, so that combining and the network overlap.
// Bytes on the wire: N (N - 1) B; each rank sends and receives (N - 1) B, which is the least possible, and stages at
// most kStagingBytes.
//
// A ring or a halving would combine in another order on each rank: the bits would not be those of the rank order that
// the interface promises.
#include <array>
#include <memory>

#include "gradwire/backend/fingerprint_internal.h"
#include "gradwire/backend/generic/exchange_internal.h"
#include "gradwire/backend/generic/generic_channel.h"
#include "gradwire/backend/generic/parts_internal.h"
#include "gradwire/backend/generic/rank_array_internal.h"
#include "gradwire/backend/validate_internal.h"
#include "gradwire/base/copy.h"
#include "gradwire/kernels/reduce.h"

namespace gradwire {

std::size_t GenericChannel::staging_of_chunks(std::size_t elements, std::size_t element) const noexcept {
  return 2 * elements * element * static_cast<std::size_t>(size() - 1);
}

void GenericChannel::post_chunk(const ChunkedReduction& reduction, std::size_t chunk, generic::Exchange& exchange,
                                std::span<std::byte> staging) {
  const std::size_t element = size_of(reduction.dtype);
  const std::size_t bytes = reduction.part(chunk, rank()).count * element;
  std::size_t used = 0;
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    post_receive(exchange, staging.data() + used, bytes, r);
    used += bytes;
  }
  for (int step = 1; step < size(); ++step) {
    const int to = (rank() + step) % size();
    const ConstSlice part = reduction.part(chunk, to);
    post_send(exchange, part.data, part.count * element, to);
  }
}

void GenericChannel::combine_chunk(const ChunkedReduction& reduction, std::size_t chunk, std::span<std::byte> staging) {
  const ConstSlice own = reduction.part(chunk, rank());
  const std::size_t bytes = own.count * size_of(reduction.dtype);
  generic::RankArray<const void*> sources(static_cast<std::size_t>(size()));
  std::size_t used = 0;
  for (int r = 0; r < size(); ++r) {
    sources[static_cast<std::size_t>(r)] = r == rank() ? own.data : staging.data() + used;
    if (r != rank()) used += bytes;
  }
  note_reduction();
  void* const result = reduction.result(chunk);
  kernels::reduce(reduction.dtype, reduction.op, sources.span(), {&result, 1}, own.count);
}

void GenericChannel::reduce_chunks(const ChunkedReduction& reduction, std::span<std::byte> staging, Deadline deadline) {
  // Of even and odd chunks.
  std::array<generic::Exchange, 2> exchanges{generic::Exchange(*this), generic::Exchange(*this)};
  const auto half = [&](std::size_t chunk) {
    return staging.subspan(chunk % 2 * (staging.size() / 2), staging.size() / 2);
  };
  if (reduction.chunks > 0) post_chunk(reduction, 0, exchanges[0], half(0));
  for (std::size_t chunk = 0; chunk < reduction.chunks; ++chunk) {
    const std::size_t next = chunk + 1;
    if (next < reduction.chunks) post_chunk(reduction, next, exchanges[next % 2], half(next));
    // Sends too: the result may be written where they read.
    exchanges[chunk % 2].finish(deadline);
    combine_chunk(reduction, chunk, half(chunk));
    if (reduction.then) reduction.then(chunk);
  }
}

void GenericChannel::reduce_blocks(std::span<std::byte> staging, std::size_t block, void* result, std::size_t count,
                                   DType dtype, ReduceOp op, Deadline deadline) {
  const auto ranks = static_cast<std::size_t>(size());
  exchange_blocks(staging.data(), block, staging.subspan(ranks * block), deadline);
  generic::RankArray<const void*> sources(ranks);
  for (std::size_t r = 0; r < ranks; ++r) sources[r] = staging.data() + r * block;
  note_reduction();
  kernels::reduce(dtype, op, sources.span(), {&result, 1}, count);
}

void GenericChannel::reduce_short(const Fingerprint& call, const void* input, void* output, std::size_t count,
                                  DType dtype, ReduceOp op, const CallOptions& options) {
  const auto ranks = static_cast<std::size_t>(size());
  const std::size_t element = size_of(dtype);
  const std::size_t block = generic::part_of(count, size(), 0).count * element;
  run_staged(call, options, 3 * ranks * block, [&](std::span<std::byte> staging) {
    const auto for_each_part = [&](auto&& visit) {
      for (std::size_t r = 0; r < ranks; ++r) {
        const generic::Part part = generic::part_of(count, size(), static_cast<int>(r));
        if (part.count > 0) visit(r, part.begin * element, part.count * element);
      }
    };
    for_each_part([&](std::size_t r, std::size_t begin, std::size_t bytes) {
      copy_bytes(staging.data() + r * block, static_cast<const std::byte*>(input) + begin, bytes);
    });
    const std::size_t own = generic::part_of(count, size(), rank()).count;
    reduce_blocks(staging, block, staging.data(), own, dtype, op, options.deadline);
    std::byte* const all = staging.data() + ranks * block;
    share_in_steps(staging.data(), all, block, options.deadline);
    if (output == nullptr) return;
    for_each_part([&](std::size_t r, std::size_t begin, std::size_t bytes) {
      copy_bytes(static_cast<std::byte*>(output) + begin, all + r * block, bytes);
    });
  });
}

void GenericChannel::reduce_scatter(std::span<const void* const> inputs, void* output, std::size_t count, DType dtype,
                                    ReduceOp op, const CallOptions& options) {
  validate::reduce_scatter(*this, inputs, output, count, dtype, op);
  const Fingerprint call = fingerprint_of(Operation::reduce_scatter, dtype, count, op);
  const std::size_t element = size_of(dtype);
  if (count > 0 && count * element <= short_block()) {
    const std::size_t block = count * element;
    return run_staged(call, options, 3 * inputs.size() * block, [&](std::span<std::byte> staging) {
      for (std::size_t r = 0; r < inputs.size(); ++r) copy_bytes(staging.data() + r * block, inputs[r], block);
      reduce_blocks(staging, block, output, count, dtype, op, options.deadline);
    });
  }
  const std::size_t chunk = generic::reduction_chunk(count, kStagingBytes, size(), element);
  run_staged(call, options, staging_of_chunks(chunk, element), [&](std::span<std::byte> staging) {
    ChunkedReduction reduction;
    reduction.chunks = count == 0 ? 0 : (count + chunk - 1) / chunk;
    reduction.dtype = dtype;
    reduction.op = op;
    reduction.part = [&](std::size_t index, int r) {
      const generic::Part part = generic::chunk_of({0, count}, index, chunk);
      const auto* const input = static_cast<const std::byte*>(inputs[static_cast<std::size_t>(r)]);
      return ConstSlice{input + part.begin * element, part.count};
    };
    reduction.result = [&](std::size_t index) { return static_cast<std::byte*>(output) + index * chunk * element; };
    reduce_chunks(reduction, staging, options.deadline);
  });
}

}  // namespace gradwire

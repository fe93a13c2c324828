// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Reduce-scatter, and the steps that all_reduce and reduce share with it.
//
// Algorithm for short blocks (B <= short_block()) in wide worlds: Bruck's exchange of blocks (share.cc), after which
// each rank has all inputs for its part and combines them in rank order. Steps: ceil(log2 N). Staging: 3 N B.
//
// Algorithm else: direct. Terms: N ranks, B bytes of result a rank, chunks of kStagingBytes / (N - 1).
// Steps: for each chunk 1. Every rank sends each other rank that one's part of its input and receives N - 1 inputs for
// its own part.
// 2. It combines the N inputs in rank order in one pass over memory.
// Bytes on the wire: N (N - 1) B; each rank sends and receives (N - 1) B, which is the least possible, and stages at
// most kStagingBytes.
//
// A ring or a halving would combine in another order on each rank: the bits would not be those of the rank order that
// the interface promises.
#include <cstring>
#include <memory>

#include "gradwire/backend/fingerprint_internal.h"
#include "gradwire/backend/generic/exchange_internal.h"
#include "gradwire/backend/generic/generic_channel.h"
#include "gradwire/backend/generic/parts_internal.h"
#include "gradwire/backend/generic/rank_array_internal.h"
#include "gradwire/backend/validate_internal.h"
#include "gradwire/kernels/reduce.h"

namespace gradwire {

void GenericChannel::post_parts(generic::Exchange& exchange, std::span<const ConstSlice> parts,
                                std::span<std::byte> staging, std::size_t element) {
  const std::size_t bytes = parts[static_cast<std::size_t>(rank())].count * element;
  std::size_t used = 0;
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    post_receive(exchange, staging.data() + used, bytes, r);
    used += bytes;
  }
  for (int step = 1; step < size(); ++step) {
    const int to = (rank() + step) % size();
    const ConstSlice& part = parts[static_cast<std::size_t>(to)];
    post_send(exchange, part.data, part.count * element, to);
  }
}

void GenericChannel::combine_parts(const ConstSlice& own, void* result, std::span<std::byte> staging, DType dtype,
                                   ReduceOp op) {
  const std::size_t bytes = own.count * size_of(dtype);
  generic::RankArray<const void*> sources(static_cast<std::size_t>(size()));
  std::size_t used = 0;
  for (int r = 0; r < size(); ++r) {
    sources[static_cast<std::size_t>(r)] = r == rank() ? own.data : staging.data() + used;
    if (r != rank()) used += bytes;
  }
  note_reduction();
  kernels::reduce(dtype, op, sources.span(), {&result, 1}, own.count);
}

void GenericChannel::reduce_parts(generic::Exchange& exchange, std::span<const ConstSlice> parts, void* result,
                                  std::span<std::byte> staging, DType dtype, ReduceOp op, Deadline deadline) {
  post_parts(exchange, parts, staging, size_of(dtype));
  // Sends too: `result` may be what one of them reads.
  exchange.finish(deadline);
  combine_parts(parts[static_cast<std::size_t>(rank())], result, staging, dtype, op);
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
      std::memcpy(staging.data() + r * block, static_cast<const std::byte*>(input) + begin, bytes);
    });
    const std::size_t own = generic::part_of(count, size(), rank()).count;
    reduce_blocks(staging, block, staging.data(), own, dtype, op, options.deadline);
    std::byte* const all = staging.data() + ranks * block;
    share_in_steps(staging.data(), all, block, options.deadline);
    if (output == nullptr) return;
    for_each_part([&](std::size_t r, std::size_t begin, std::size_t bytes) {
      std::memcpy(static_cast<std::byte*>(output) + begin, all + r * block, bytes);
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
      for (std::size_t r = 0; r < inputs.size(); ++r) std::memcpy(staging.data() + r * block, inputs[r], block);
      reduce_blocks(staging, block, output, count, dtype, op, options.deadline);
    });
  }
  const std::size_t chunk = std::min(count, generic::chunk_elements(kStagingBytes, size(), element));
  const std::size_t staging_bytes = chunk * element * (inputs.size() - 1);
  run_staged(call, options, staging_bytes, [&](std::span<std::byte> staging) {
    generic::Exchange exchange;
    generic::RankArray<ConstSlice> parts(inputs.size());
    for (std::size_t begin = 0; begin < count; begin += chunk) {
      const std::size_t length = std::min(chunk, count - begin);
      for (std::size_t r = 0; r < inputs.size(); ++r) {
        parts[r] = {static_cast<const std::byte*>(inputs[r]) + begin * element, length};
      }
      reduce_parts(exchange, parts.span(), static_cast<std::byte*>(output) + begin * element, staging, dtype, op,
                   options.deadline);
    }
  });
}

}  // namespace gradwire

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// All-reduce.
//
// Terms: N ranks, B bytes, a part of B / N a rank.
//
// Algorithm for N B up to kAtOnceBytes, and for two ranks for B up to kAtOnceOfTwoBytes: with the fingerprints.
// Steps: 1. Every rank sends its input, together with its fingerprint, to every other; in a wide world up and down a
// tree (tree_entry_internal.h). 2. Each combines all inputs in rank order. Bytes on the wire: N (N - 1) B, in the steps
// that comparing fingerprints takes anyway.
//
// Algorithm for parts that are short blocks, in wide worlds: Bruck's exchange of blocks, after which each rank has all
// inputs for its part and combines them in rank order, then share (share.cc). Steps: 2 ceil(log2 N). Bytes on the wire:
// N B / 2 log2 N and (N - 1) B.
//
// Algorithm for more: direct reduce-scatter, then all-gather, in chunks of a part. Steps: for each chunk 1. Every rank
// sends each other rank that one's part and receives N - 1 inputs for its own (reduce_scatter.cc).
// 2. It combines them in rank order, into its own part of the buffer. 3. It sends its part to all, and receives theirs.
// Step 1 of the next chunk is under way during 2 and 3, so that combining and the network overlap.
// Bytes on the wire: 2 (N - 1) B; each rank sends and receives 2 B (N - 1) / N, the least possible, and stages at most
// kStagingBytes. The bits are the same on all ranks because each element is computed once.
//
// All combine in the same order, so the bits do not depend on the algorithm.
#include <array>
#include <memory>

#include "gradwire/backend/fingerprint_internal.h"
#include "gradwire/backend/generic/exchange_internal.h"
#include "gradwire/backend/generic/generic_channel.h"
#include "gradwire/backend/generic/parts_internal.h"
#include "gradwire/backend/validate_internal.h"
#include "gradwire/kernels/reduce.h"

namespace gradwire {

void GenericChannel::all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op, const CallOptions& options) {
  validate::all_reduce(*this, data, count, dtype, op);
  const std::size_t bytes = count * size_of(dtype);
  if (bytes > exchange_at_once_bytes()) return all_reduce_in_chunks(data, count, dtype, op, options);
  const Fingerprint call = fingerprint_of(Operation::all_reduce, dtype, count, op);
  run_at_once(call, options, data, bytes, [&](std::span<const void* const> inputs) {
    note_reduction();
    kernels::reduce(dtype, op, inputs, {&data, 1}, count);
  });
}

void GenericChannel::all_reduce_in_chunks(void* data, std::size_t count, DType dtype, ReduceOp op,
                                          const CallOptions& options) {
  const Fingerprint call = fingerprint_of(Operation::all_reduce, dtype, count, op);
  const std::size_t element = size_of(dtype);
  const std::size_t longest = generic::part_of(count, size(), 0).count;
  if (longest * element <= short_block()) return reduce_short(call, data, data, count, dtype, op, options);
  const std::size_t chunk = generic::reduction_chunk(longest, kStagingBytes, size(), element);
  run_staged(call, options, staging_of_chunks(chunk, element), [&](std::span<std::byte> staging) {
    const auto at = [&](std::size_t index, int r) {
      const generic::Part part = generic::chunk_of(generic::part_of(count, size(), r), index, chunk);
      return Slice{static_cast<std::byte*>(data) + part.begin * element, part.count};
    };
    // Of even and odd chunks.
    std::array<generic::Exchange, 2> gathering{generic::Exchange(*this), generic::Exchange(*this)};
    ChunkedReduction reduction;
    reduction.chunks = (longest + chunk - 1) / chunk;
    reduction.dtype = dtype;
    reduction.op = op;
    reduction.part = [&](std::size_t index, int r) {
      const Slice slice = at(index, r);
      return ConstSlice{slice.data, slice.count};
    };
    reduction.result = [&](std::size_t index) { return at(index, rank()).data; };
    reduction.then = [&](std::size_t index) {
      generic::Exchange& exchange = gathering[index % 2];
      exchange.finish(options.deadline);
      const Slice own = at(index, rank());
      for (int step = 1; step < size(); ++step) {
        const int from = (rank() - step + size()) % size();
        const Slice theirs = at(index, from);
        post_receive(exchange, theirs.data, theirs.count * element, from);
      }
      for (int step = 1; step < size(); ++step) {
        post_send(exchange, own.data, own.count * element, (rank() + step) % size());
      }
    };
    reduce_chunks(reduction, staging, options.deadline);
    for (generic::Exchange& last : gathering) last.finish(options.deadline);
  });
}

}  // namespace gradwire

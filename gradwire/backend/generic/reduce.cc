// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Reduce to one rank.
//
// Algorithm for N B up to kAtOnceBytes: every rank sends its input together with its fingerprint to every other, in the
// one step that comparing fingerprints takes anyway; the root combines. Bytes on the wire: N (N - 1) B.
//
// Algorithm for parts that are short blocks, in wide worlds: all_reduce's, whose result only the root keeps. Steps:
// 2 ceil(log2 N).
//
// Algorithm else: direct reduce-scatter, then gather, in chunks. Terms: N ranks, B bytes, a part of B / N a rank.
// Steps: for each chunk 1. and 2. as in reduce_scatter.cc, a rank combining its part. 3. It sends the part to the root,
// while the next chunk is combined. Bytes on the wire: 2 (N - 1) B, of which the root receives 2 B (N - 1) / N, where N
// - 1 whole inputs sent to it would be (N - 1) B through one rank. Staging: kStagingBytes and two chunks.
#include <array>
#include <memory>

#include "gradwire/backend/fingerprint_internal.h"
#include "gradwire/backend/generic/exchange_internal.h"
#include "gradwire/backend/generic/generic_channel.h"
#include "gradwire/backend/generic/parts_internal.h"
#include "gradwire/backend/validate_internal.h"
#include "gradwire/kernels/reduce.h"

namespace gradwire {

void GenericChannel::reduce(const void* input, void* output, std::size_t count, DType dtype, ReduceOp op, int root,
                            const CallOptions& options) {
  validate::reduce(*this, input, output, count, dtype, op, root);
  const Fingerprint call = fingerprint_of(Operation::reduce, dtype, count, op, root);
  const std::size_t element = size_of(dtype);
  if (count * element <= at_once_bytes()) {
    return run_at_once(call, options, input, count * element, [&](std::span<const void* const> inputs) {
      if (rank() != root) return;
      note_reduction();
      kernels::reduce(dtype, op, inputs, {&output, 1}, count);
    });
  }
  const std::size_t longest = generic::part_of(count, size(), 0).count;
  if (longest * element <= short_block()) {
    return reduce_short(call, input, rank() == root ? output : nullptr, count, dtype, op, options);
  }
  const std::size_t chunk = generic::reduction_chunk(longest, kStagingBytes, size(), element);
  const std::size_t staging_bytes = staging_of_chunks(chunk, element);
  // The last two chunks' worth holds the results of a rank that is not the root, whose output is not ours to touch.
  run_staged(call, options, staging_bytes + 2 * chunk * element, [&](std::span<std::byte> staging) {
    auto* const out = static_cast<std::byte*>(output);
    const auto part = [&](std::size_t index, int r) {
      return generic::chunk_of(generic::part_of(count, size(), r), index, chunk);
    };
    // Of even and odd chunks.
    std::array<generic::Exchange, 2> gathering{generic::Exchange(*this), generic::Exchange(*this)};
    const auto result = [&](std::size_t index) {
      if (rank() == root) return out + part(index, root).begin * element;
      return staging.data() + staging_bytes + index % 2 * chunk * element;
    };
    ChunkedReduction reduction;
    reduction.chunks = count == 0 ? 0 : (longest + chunk - 1) / chunk;
    reduction.dtype = dtype;
    reduction.op = op;
    reduction.part = [&](std::size_t index, int r) {
      const generic::Part its = part(index, r);
      return ConstSlice{static_cast<const std::byte*>(input) + its.begin * element, its.count};
    };
    reduction.result = [&](std::size_t index) {
      gathering[index % 2].finish(options.deadline);  // it sends what is written over now
      return static_cast<void*>(result(index));
    };
    reduction.then = [&](std::size_t index) {
      generic::Exchange& exchange = gathering[index % 2];
      if (rank() != root) return post_send(exchange, result(index), part(index, rank()).count * element, root);
      for (int step = 1; step < size(); ++step) {
        const int from = (rank() + step) % size();
        const generic::Part its = part(index, from);
        post_receive(exchange, out + its.begin * element, its.count * element, from);
      }
    };
    reduce_chunks(reduction, staging.first(staging_bytes), options.deadline);
    for (generic::Exchange& last : gathering) last.finish(options.deadline);
  });
}

}  // namespace gradwire

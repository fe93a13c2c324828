// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Reduce to one rank.
//
// Algorithm for parts that are short blocks, in wide worlds: all_reduce's, whose result only the root keeps. Steps:
// 2 ceil(log2 N).
//
// Algorithm else: direct reduce-scatter, then gather. Terms: N ranks, B bytes, a part of B / N a rank, chunks of
// kStagingBytes / (N - 1). Steps: for each chunk 1. and 2. as in reduce_scatter.cc, a rank combining its part. 3. It
// sends the part to the root. Bytes on the wire: 2 (N - 1) B, of which the root receives 2 B (N - 1) / N, where N - 1
// whole inputs sent to it would be (N - 1) B through one rank. Staging: kStagingBytes and one chunk.
#include <memory>

#include "gradwire/backend/fingerprint_internal.h"
#include "gradwire/backend/generic/exchange_internal.h"
#include "gradwire/backend/generic/generic_channel.h"
#include "gradwire/backend/generic/parts_internal.h"
#include "gradwire/backend/generic/rank_array_internal.h"
#include "gradwire/backend/validate_internal.h"

namespace gradwire {

void GenericChannel::reduce(const void* input, void* output, std::size_t count, DType dtype, ReduceOp op, int root,
                            const CallOptions& options) {
  validate::reduce(*this, input, output, count, dtype, op, root);
  const Fingerprint call = fingerprint_of(Operation::reduce, dtype, count, op, root);
  const std::size_t element = size_of(dtype);
  const auto ranks = static_cast<std::size_t>(size());
  const std::size_t longest = generic::part_of(count, size(), 0).count;
  if (longest > 0 && longest * element <= short_block()) {
    return reduce_short(call, input, rank() == root ? output : nullptr, count, dtype, op, options);
  }
  const std::size_t chunk = std::min(longest, generic::chunk_elements(kStagingBytes, size(), element));
  const std::size_t staging_bytes = chunk * element * (ranks - 1);
  // The last chunk's worth holds the result of a rank that is not the root, whose output is not ours to touch.
  run_staged(call, options, staging_bytes + chunk * element, [&](std::span<std::byte> staging) {
    generic::Exchange exchange;
    generic::RankArray<ConstSlice> parts(ranks);
    for (std::size_t index = 0; index * chunk < longest; ++index) {
      const auto part = [&](int r) { return generic::chunk_of(generic::part_of(count, size(), r), index, chunk); };
      for (std::size_t r = 0; r < ranks; ++r) {
        const generic::Part its = part(static_cast<int>(r));
        parts[r] = {static_cast<const std::byte*>(input) + its.begin * element, its.count};
      }
      auto* const out = static_cast<std::byte*>(output);
      const generic::Part own = part(rank());
      std::byte* const result = rank() == root ? out + own.begin * element : staging.data() + staging_bytes;
      reduce_parts(exchange, parts.span(), result, staging.first(staging_bytes), dtype, op, options.deadline);
      if (rank() != root) {
        post_send(exchange, result, own.count * element, root);
      } else {
        for (int step = 1; step < size(); ++step) {
          const int from = (rank() + step) % size();
          post_receive(exchange, out + part(from).begin * element, part(from).count * element, from);
        }
      }
      exchange.finish(options.deadline);
    }
  });
}

}  // namespace gradwire

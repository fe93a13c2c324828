// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// All-reduce.
//
// Algorithm: direct reduce-scatter, then all-gather. Terms: N ranks, B bytes, a part of B / N a rank, chunks of
// kStagingBytes / (N - 1). Steps: for each chunk 1. Every rank sends each other rank that one's part and receives N - 1
// inputs for its own (reduce_scatter.cc).
// 2. It combines them in rank order, into its own part of the buffer. 3. It sends its part to all, and receives theirs.
// Bytes on the wire: 2 (N - 1) B; each rank sends and receives 2 B (N - 1) / N, the least possible, and stages at most
// kStagingBytes. The bits are the same on all ranks because each element is computed once.
#include <array>
#include <memory>

#include "gradwire/backend/fingerprint_internal.h"
#include "gradwire/backend/generic/exchange_internal.h"
#include "gradwire/backend/generic/generic_channel.h"
#include "gradwire/backend/generic/parts_internal.h"
#include "gradwire/backend/validate_internal.h"

namespace gradwire {

void GenericChannel::all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op, const CallOptions& options) {
  validate::all_reduce(*this, data, count, dtype, op);
  const Fingerprint call = fingerprint_of(Operation::all_reduce, dtype, count, op);
  const std::size_t element = size_of(dtype);
  const auto ranks = static_cast<std::size_t>(size());
  const std::size_t longest = generic::part_of(count, size(), 0).count;
  const std::size_t chunk = std::min(longest, generic::chunk_elements(kStagingBytes, size(), element));
  const std::size_t staging_bytes = chunk * element * (ranks - 1);
  run_staged(call, options, staging_bytes, [&](std::span<std::byte> staging) {
    generic::Exchange exchange;
    std::array<ConstSlice, kMaxWorldSize> parts;
    for (std::size_t index = 0; index * chunk < longest; ++index) {
      const auto at = [&](int r) {
        const generic::Part part = generic::chunk_of(generic::part_of(count, size(), r), index, chunk);
        return Slice{static_cast<std::byte*>(data) + part.begin * element, part.count};
      };
      for (std::size_t r = 0; r < ranks; ++r) {
        const Slice slice = at(static_cast<int>(r));
        parts[r] = {slice.data, slice.count};
      }
      const Slice own = at(rank());
      reduce_parts(exchange, {parts.data(), ranks}, own.data, staging, dtype, op, options.deadline);
      for (int step = 1; step < size(); ++step) {
        const int from = (rank() - step + size()) % size();
        const Slice theirs = at(from);
        post_receive(exchange, theirs.data, theirs.count * element, from);
      }
      for (int step = 1; step < size(); ++step) {
        post_send(exchange, own.data, own.count * element, (rank() + step) % size());
      }
      exchange.finish(options.deadline);
    }
  });
}

}  // namespace gradwire

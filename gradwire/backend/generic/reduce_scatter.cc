// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Reduce-scatter, and the step that all_reduce and reduce share with it.
//
// Algorithm: direct. Terms: N ranks, B bytes of result a rank, chunks of kStagingBytes / (N - 1).
// Steps: for each chunk 1. Every rank sends each other rank that one's part of its input and receives N - 1 inputs for
// its own part.
// 2. It combines the N inputs in rank order in one pass over memory.
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
  std::array<const void*, kMaxWorldSize> sources{};
  std::size_t used = 0;
  for (int r = 0; r < size(); ++r) {
    sources[static_cast<std::size_t>(r)] = r == rank() ? own.data : staging.data() + used;
    if (r != rank()) used += bytes;
  }
  note_reduction();
  kernels::reduce(dtype, op, {sources.data(), static_cast<std::size_t>(size())}, {&result, 1}, own.count);
}

void GenericChannel::reduce_parts(generic::Exchange& exchange, std::span<const ConstSlice> parts, void* result,
                                  std::span<std::byte> staging, DType dtype, ReduceOp op, Deadline deadline) {
  post_parts(exchange, parts, staging, size_of(dtype));
  // Sends too: `result` may be what one of them reads.
  exchange.finish(deadline);
  combine_parts(parts[static_cast<std::size_t>(rank())], result, staging, dtype, op);
}

void GenericChannel::reduce_scatter(std::span<const void* const> inputs, void* output, std::size_t count, DType dtype,
                                    ReduceOp op, const CallOptions& options) {
  validate::reduce_scatter(*this, inputs, output, count, dtype, op);
  const Fingerprint call = fingerprint_of(Operation::reduce_scatter, dtype, count, op);
  const std::size_t element = size_of(dtype);
  const std::size_t chunk = std::min(count, generic::chunk_elements(kStagingBytes, size(), element));
  const std::size_t staging_bytes = chunk * element * (inputs.size() - 1);
  run_staged(call, options, staging_bytes, [&](std::span<std::byte> staging) {
    generic::Exchange exchange;
    std::array<ConstSlice, kMaxWorldSize> parts;
    for (std::size_t begin = 0; begin < count; begin += chunk) {
      const std::size_t length = std::min(chunk, count - begin);
      for (std::size_t r = 0; r < inputs.size(); ++r) {
        parts[r] = {static_cast<const std::byte*>(inputs[r]) + begin * element, length};
      }
      reduce_parts(exchange, {parts.data(), inputs.size()}, static_cast<std::byte*>(output) + begin * element, staging,
                   dtype, op, options.deadline);
    }
  });
}

}  // namespace gradwire

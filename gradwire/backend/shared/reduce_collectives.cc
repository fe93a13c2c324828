// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// reduce and reduce_scatter over shared memory.
//
// Every rank offers its input (reduce) or its N inputs (reduce_scatter); a rank that gets a result reduces what all
// offered for it in one pass, in rank order. Direct: straight out of the owners' buffers, two steps. Staged: through
// the staging areas, one step a window. With B bytes of result and N ranks, reduce moves (N-1) B to the root;
// reduce_scatter moves (N-1) B out of and into every rank.
#include <algorithm>
#include <array>

#include "gradwire/backend/shared/call_internal.h"
#include "gradwire/backend/validate_internal.h"
#include "gradwire/kernels/reduce.h"

namespace gradwire::shared {

void SharedChannel::reduce_offers(const Fingerprint& mine, const Offer& offer, std::size_t parts, Location location,
                                  std::size_t part, std::byte* output, ReduceOp op) {
  const std::size_t element = size_of(mine.dtype);
  const std::size_t bytes = mine.count * element;
  if (parts > 1) publish_parts(offer, location, {});
  const auto reduce_range = [&](std::size_t begin, std::size_t length, auto&& source_of) {
    if (output == nullptr) return;
    std::array<const void*, kMaxWorldSize> sources{};
    for (int peer = 0; peer < size(); ++peer) {
      sources[static_cast<std::size_t>(peer)] =
          peer == rank() ? static_cast<const std::byte*>(offer.parts[part].data) + begin : source_of(peer);
    }
    void* const to = output + begin;
    kernels::reduce(mine.dtype, op, {sources.data(), static_cast<std::size_t>(size())}, {&to, 1}, length / element);
  };
  transfer(
      mine, offer, parts, location, [&] { return bytes; },
      [&] { reduce_range(0, bytes, [&](int peer) { return peer_part(peer, part, parts); }); },
      [&](std::size_t begin, std::size_t length) {
        reduce_range(begin, length, [&](int peer) { return staged_part(peer, part, parts); });
      });
}

void SharedChannel::reduce(const void* input, void* output, std::size_t count, DType dtype, ReduceOp op, int root,
                           const CallOptions& options) {
  validate::reduce(*this, input, output, count, dtype, op, root);
  collective(Operation::reduce, options, [&] {
    const std::size_t bytes = count * size_of(dtype);
    auto* to = count != 0 && rank() == root ? static_cast<std::byte*>(output) : nullptr;
    reduce_offers(fingerprint(dtype, count, op, root), {{{input, bytes}}}, 1, locate(input, bytes), 0, to, op);
  });
}

void SharedChannel::reduce_scatter(std::span<const void* const> inputs, void* output, std::size_t count, DType dtype,
                                   ReduceOp op, const CallOptions& options) {
  validate::reduce_scatter(*this, inputs, output, count, dtype, op);
  collective(Operation::reduce_scatter, options, [&] {
    const std::size_t bytes = count * size_of(dtype);
    const auto own = static_cast<std::size_t>(rank());
    Offer offer;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      offer.parts.push_back({inputs[i], bytes});
      // A result that replaces an input which others still read must wait its turn in the staging areas.
      if (i != own && inputs[i] == output) offer.reachable = false;
    }
    auto* to = count == 0 ? nullptr : static_cast<std::byte*>(output);
    reduce_offers(fingerprint(dtype, count, op), offer, inputs.size(), locate(offer, nullptr, 0), own, to, op);
  });
}

}  // namespace gradwire::shared

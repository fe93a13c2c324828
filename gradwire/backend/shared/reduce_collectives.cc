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

#include "gradwire/backend/shared/collectives_internal.h"
#include "gradwire/backend/shared/max_ranks.h"
#include "gradwire/kernels/reduce.h"

namespace gradwire::shared {

namespace {

void reduce_offers(Call& call, const Fingerprint& mine, const Offer& offer, std::size_t parts, Location location,
                   std::size_t part, std::byte* output, ReduceOp op, const Windows& windows) {
  const std::size_t element = size_of(mine.dtype);
  const std::size_t bytes = mine.count * element;
  if (parts > 1) call.publish_parts(offer, location, {});
  const auto reduce_range = [&](std::size_t begin, std::size_t length, auto&& source_of) {
    if (output == nullptr) return;
    std::array<const void*, kMaxRanksOfHost> sources{};
    for (int peer = 0; peer < call.size(); ++peer) {
      sources[static_cast<std::size_t>(peer)] =
          peer == call.rank() ? static_cast<const std::byte*>(offer.parts[part].data) + begin : source_of(peer);
    }
    void* const to = output + begin;
    kernels::reduce(mine.dtype, op, {sources.data(), static_cast<std::size_t>(call.size())}, {&to, 1},
                    length / element);
  };
  transfer(
      call, mine, offer, parts, location, windows, [&] { return bytes; },
      [&] { reduce_range(0, bytes, [&](int peer) { return peer_part(call, peer, part, parts); }); },
      [&](std::size_t begin, std::size_t at, std::size_t length) {
        reduce_range(begin + at, length, [&](int peer) { return call.buffers().staged_part(peer, part, parts) + at; });
      });
}

}  // namespace

void reduce(Call& call, const void* input, void* output, std::size_t count, DType dtype, ReduceOp op, int root) {
  const std::size_t bytes = count * size_of(dtype);
  auto* to = count != 0 && call.rank() == root ? static_cast<std::byte*>(output) : nullptr;
  // Nobody else reads what the root has.
  const Offer offer({input, call.rank() == root ? 0 : bytes});
  Windows windows{call.buffers().first_slice_of(1, bytes), true};
  for (int peer = 0; call.rank() == root && peer < call.size(); ++peer) {
    if (peer != root) windows.owners |= bit_of_rank(peer);
  }
  reduce_offers(call, call.fingerprint(dtype, count, op, root), offer, 1, call.buffers().locate(input, bytes), 0, to,
                op, windows);
}

void reduce_scatter(Call& call, std::span<const void* const> inputs, void* output, std::size_t count, DType dtype,
                    ReduceOp op) {
  const std::size_t bytes = count * size_of(dtype);
  const auto own = static_cast<std::size_t>(call.rank());
  Offer offer;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    offer.parts.push_back({inputs[i], i == own ? 0 : bytes});  // nobody else reads its own part
    // A result that replaces an input which others still read must wait its turn in the staging areas.
    if (i != own && inputs[i] == output) offer.reachable = false;
  }
  auto* to = count == 0 ? nullptr : static_cast<std::byte*>(output);
  reduce_offers(call, call.fingerprint(dtype, count, op), offer, inputs.size(),
                call.buffers().locate(offer, nullptr, 0), own, to, op, {call.buffers().slice_of(inputs.size())});
}

}  // namespace gradwire::shared

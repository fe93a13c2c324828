// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What is small and goes from all ranks to all: the same bytes to everyone (share), or a block for each (blocks).
//
// Terms: N ranks, B bytes a rank (share) or a block (blocks).
//
// Algorithm of share for N <= kDirectRanks: direct. Steps: 1. Every rank sends to every other. Bytes on the wire:
// N (N - 1) B.
//
// Algorithm of share for wide worlds: dissemination (Bruck). Steps: ceil(log2 N); before the step of distance d = 1, 2,
// 4, ... a rank holds the bytes of d ranks from itself on; it sends them to rank - d and gets the next d from rank + d.
// Bytes on the wire: N (N - 1) B, in N log2 N messages.
//
// Algorithm of blocks: Bruck. Steps: ceil(log2 N); in the step of distance d a rank sends rank + d all blocks whose way
// to go has the bit d, and gets as many from rank - d. Bytes on the wire: about N B N / 2 log2 N, in N log2 N messages,
// where sending each block by itself would be N (N - 1) B in N (N - 1) messages. So it pays for short blocks.
#include <algorithm>
#include <vector>

#include "gradwire/backend/generic/exchange_internal.h"
#include "gradwire/backend/generic/generic_channel.h"
#include "gradwire/base/copy.h"

namespace gradwire {

void GenericChannel::share(const void* mine, void* all, std::size_t bytes, Deadline deadline) {
  if (is_wide()) return share_in_steps(mine, all, bytes, deadline);
  generic::Exchange exchange(*this);
  auto* slots = static_cast<std::byte*>(all);
  for (int step = 1; step < size(); ++step) {
    const int from = (rank() - step + size()) % size();
    post_receive(exchange, slots + static_cast<std::size_t>(from) * bytes, bytes, from);
  }
  for (int step = 1; step < size(); ++step) post_send(exchange, mine, bytes, (rank() + step) % size());
  exchange.finish(deadline);
}

void GenericChannel::share_in_steps(const void* mine, void* all, std::size_t bytes, Deadline deadline) {
  const auto ranks = static_cast<std::size_t>(size());
  const auto own = static_cast<std::size_t>(rank());
  if (bytes == 0) return;
  std::vector<std::byte> held(ranks * bytes);  // of this rank, the next, ...
  copy_bytes(held.data(), mine, bytes);
  generic::Exchange exchange(*this);
  for (std::size_t distance = 1; distance < ranks; distance *= 2) {
    const std::size_t moved = std::min(distance, ranks - distance) * bytes;
    post_receive(exchange, held.data() + distance * bytes, moved, static_cast<int>((own + distance) % ranks));
    post_send(exchange, held.data(), moved, static_cast<int>((own + ranks - distance) % ranks));
    exchange.finish(deadline);
  }
  auto* const slots = static_cast<std::byte*>(all);
  copy_bytes(slots + own * bytes, held.data(), (ranks - own) * bytes);
  if (own > 0) copy_bytes(slots, held.data() + (ranks - own) * bytes, own * bytes);
}

std::size_t GenericChannel::short_block() const noexcept {
  constexpr std::size_t kMost = std::size_t{1} << 10;
  return is_wide() ? std::min(kMost, kStagingBytes / 3 / static_cast<std::size_t>(size())) : 0;
}

void GenericChannel::exchange_blocks(std::byte* blocks, std::size_t bytes, std::span<std::byte> scratch,
                                     Deadline deadline) {
  const auto ranks = static_cast<std::size_t>(size());
  const auto own = static_cast<std::size_t>(rank());
  // Block i of `held` has i ranks to go, or came so far.
  std::byte* const held = scratch.data();
  std::byte* const sent = held + ranks * bytes;
  std::byte* const received = sent + ranks / 2 * bytes;
  const auto each = [&](std::size_t distance, auto&& visit) {
    for (std::size_t i = 0; i < ranks; ++i) {
      if ((i & distance) != 0) visit(held + i * bytes);
    }
  };
  for (std::size_t i = 0; i < ranks; ++i) copy_bytes(held + i * bytes, blocks + (own + i) % ranks * bytes, bytes);
  generic::Exchange exchange(*this);
  for (std::size_t distance = 1; distance < ranks; distance *= 2) {
    std::size_t moved = 0;
    each(distance, [&](const std::byte* block) {
      copy_bytes(sent + moved, block, bytes);
      moved += bytes;
    });
    post_receive(exchange, received, moved, static_cast<int>((own + ranks - distance) % ranks));
    post_send(exchange, sent, moved, static_cast<int>((own + distance) % ranks));
    exchange.finish(deadline);
    const std::byte* next = received;
    each(distance, [&](std::byte* block) {
      copy_bytes(block, next, bytes);
      next += bytes;
    });
  }
  for (std::size_t i = 0; i < ranks; ++i) {
    copy_bytes(blocks + (own + ranks - i) % ranks * bytes, held + i * bytes, bytes);
  }
}

}  // namespace gradwire

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Messages and offers that came before their receives, in the order in which they came.
#include <algorithm>
#include <memory>
#include <utility>

#include "gradwire/backend/messages/matcher_internal.h"

namespace gradwire::messages {

Matcher::UnexpectedList::iterator Matcher::find_unexpected(Channel& channel, const Message& receive) {
  return std::find_if(channel.unexpected.begin(), channel.unexpected.end(), [&](const Unexpected& row) {
    return row.tag == receive.tag && (receive.peer == kAnySource || receive.peer == row.peer);
  });
}

void Matcher::keep(Channel& channel, int source, const Frame& frame, const Payload& payload) {
  std::unique_ptr<std::byte[]> memory;
  if (payload.size() != 0) memory = std::make_unique_for_overwrite<std::byte[]>(payload.size());
  if (spare_.empty()) spare_.emplace_back();
  payload.copy_to(memory.get());
  const std::uint64_t lent = frame.id != 0 ? frame.reply : 0;
  spare_.front() = {source, frame.tag, frame.id, lent, frame.bytes, std::move(memory)};
  channel.unexpected.splice(channel.unexpected.end(), spare_, spare_.begin());
}

Matcher::UnexpectedList::iterator Matcher::drop(UnexpectedList& list, UnexpectedList::iterator which) noexcept {
  constexpr std::size_t kSpare = 64;
  freed(which->peer, which->offer != 0, which->bytes);
  which->payload.reset();
  if (spare_.size() >= kSpare) return list.erase(which);
  const auto after = std::next(which);
  spare_.splice(spare_.end(), list, which);
  return after;
}

void Matcher::freed(int source, bool is_offer, std::size_t bytes) noexcept {
  if (is_offer) {
    ++peer(source).freed_offers;
  } else {
    peer(source).freed_bytes += bytes + kEagerOverhead;
  }
  if (is_credit_due(peer(source))) mark_due(source);
}

Matcher::Kept Matcher::kept(int peer) const noexcept {
  Kept all;
  for (const auto& [number, channel] : channels_) {
    for (const Unexpected& row : channel.unexpected) {
      if (row.peer != peer) continue;
      (row.offer != 0 ? all.offers : all.bytes) += row.offer != 0 ? 1 : row.bytes + kEagerOverhead;
    }
  }
  return all;
}

}  // namespace gradwire::messages

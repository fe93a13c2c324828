// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/messages/unreceived_internal.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace gradwire::messages {
namespace {

constexpr std::size_t kSpareRows = 64;

Unexpected* first_of(UnexpectedList& list, auto&& is_meant) noexcept {
  const auto found = std::find_if(list.begin(), list.end(), is_meant);
  return found == list.end() ? nullptr : &*found;
}

}  // namespace

Unexpected* Unreceived::find(UnexpectedList& list, const Message& receive) noexcept {
  return first_of(list, [&](const Unexpected& row) {
    return row.tag == receive.tag && (receive.peer == kAnySource || receive.peer == row.peer);
  });
}

Unexpected* Unreceived::find_offer(UnexpectedList& list, int peer, std::uint64_t offer) noexcept {
  return first_of(list, [&](const Unexpected& row) { return row.peer == peer && row.offer == offer; });
}

Unreceived::Kept Unreceived::kept(const UnexpectedList& list, int peer) noexcept {
  Kept all;
  for (const Unexpected& row : list) {
    if (row.peer != peer) continue;
    (row.offer != 0 ? all.offers : all.bytes) += row.offer != 0 ? 1 : row.bytes + kEagerOverhead;
  }
  return all;
}

void Unreceived::keep(UnexpectedList& list, int source, const Frame& frame, const Payload& payload) {
  std::unique_ptr<std::byte[]> memory;
  if (payload.size() != 0) memory = std::make_unique_for_overwrite<std::byte[]>(payload.size());
  if (spare_.empty()) spare_.emplace_back();
  payload.copy_to(memory.get());
  const std::uint64_t lent = frame.id != 0 ? frame.reply : 0;
  spare_.front() = {source, frame.tag, frame.id, lent, frame.bytes, std::move(memory), spare_.begin()};
  list.splice(list.end(), spare_, spare_.begin());
}

void Unreceived::drop(UnexpectedList& list, Unexpected& row) noexcept {
  if (row.offer != 0) {
    outbox_.free_offer(row.peer);
  } else {
    outbox_.free_message(row.peer, row.bytes);
  }
  row.payload.reset();
  if (spare_.size() < kSpareRows) {
    spare_.splice(spare_.end(), list, row.place);
  } else {
    list.erase(row.place);
  }
}

void Unreceived::drop_all(UnexpectedList& list) noexcept {
  while (!list.empty()) drop(list, list.front());
}

void Unreceived::drop_offers(UnexpectedList& list, int peer) noexcept {
  for (auto row = list.begin(); row != list.end();) {
    Unexpected& each = *row++;
    if (each.peer == peer && each.offer != 0) drop(list, each);
  }
}

}  // namespace gradwire::messages

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/messages/unreceived_internal.h"

#include <utility>

namespace gradwire::messages {
namespace {

constexpr std::size_t kSpareRows = 64;

}  // namespace

Unreceived::Unreceived(Outbox& outbox) : outbox_(outbox) { spare_.reserve(kSpareRows); }

Unreceived::Kept Unreceived::kept(const UnexpectedList& list, int peer) noexcept {
  Kept all;
  list.for_each([&](const Unexpected& row) {
    if (row.peer != peer) return;
    (row.offer != 0 ? all.offers : all.bytes) += row.offer != 0 ? 1 : row.bytes + kEagerOverhead;
  });
  return all;
}

void Unreceived::keep(UnexpectedList& list, int source, const Frame& frame, const Payload& payload) {
  std::unique_ptr<std::byte[]> memory;
  if (payload.size() != 0) memory = std::make_unique_for_overwrite<std::byte[]>(payload.size());
  if (spare_.empty()) spare_.push_back(std::make_unique<Unexpected>());
  payload.copy_to(memory.get());
  std::unique_ptr<Unexpected> row = std::move(spare_.back());
  spare_.pop_back();
  const std::uint64_t lent = frame.id != 0 ? frame.reply : 0;
  *row = {source, frame.tag, frame.id, lent, frame.bytes, std::move(memory), {}, {}};
  list.add(std::move(row));
}

void Unreceived::drop(UnexpectedList& list, Unexpected& row) noexcept {
  if (row.offer != 0) {
    outbox_.free_offer(row.peer);
  } else {
    outbox_.free_message(row.peer, row.bytes);
  }
  row.payload.reset();
  std::unique_ptr<Unexpected> free = list.take(row);
  if (spare_.size() < kSpareRows) spare_.push_back(std::move(free));
}

void Unreceived::drop_all(UnexpectedList& list) noexcept {
  list.for_each([&](Unexpected& row) { drop(list, row); });
}

void Unreceived::drop_offers(UnexpectedList& list, int peer) noexcept {
  list.for_each([&](Unexpected& row) {
    if (row.peer == peer && row.offer != 0) drop(list, row);
  });
}

}  // namespace gradwire::messages

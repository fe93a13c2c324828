// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/messages/unexpected_list_internal.h"

#include <algorithm>
#include <bit>
#include <new>

#include "gradwire/backend/messages/limits_internal.h"
#include "gradwire/backend/messages/match_key_internal.h"

namespace gradwire::messages {

UnexpectedList::~UnexpectedList() {
  static_assert(sizeof(Unexpected) + sizeof(Bucket) * kChainsOfThreeRows / 3 <= kEagerOverhead);
  visit_all([&](Unexpected& row) { delete &row; });
}

UnexpectedList::Bucket& UnexpectedList::at(Buckets& buckets, int peer, std::uint32_t tag) noexcept {
  return buckets[match_place(peer, tag, buckets.size())];
}

void UnexpectedList::link(Buckets& buckets, Unexpected& row) noexcept {
  at(buckets, kAnySource, row.tag).of_tag.push_back(row);
  at(buckets, row.peer, row.tag).of_peer_and_tag.push_back(row);
}

Unexpected* UnexpectedList::find(int peer, std::uint32_t tag) const noexcept {
  const Bucket& bucket = buckets_[match_place(peer, tag, buckets_.size())];
  if (peer == kAnySource) {
    Unexpected* row = bucket.of_tag.front();
    while (row != nullptr && row->tag != tag) row = TagChain::after(*row);
    return row;
  }
  Unexpected* row = bucket.of_peer_and_tag.front();
  while (row != nullptr && !(row->tag == tag && row->peer == peer)) row = PeerAndTagChain::after(*row);
  return row;
}

Unexpected* UnexpectedList::find_offer(int peer, std::uint32_t tag, std::uint64_t offer) const noexcept {
  Unexpected* row = buckets_[match_place(peer, tag, buckets_.size())].of_peer_and_tag.front();
  while (row != nullptr && !(row->offer == offer && row->peer == peer)) row = PeerAndTagChain::after(*row);
  return row;
}

void UnexpectedList::add(std::unique_ptr<Unexpected> row) noexcept {
  if (++size_ > kFewRows && size_ > kRowsPerBucket * buckets_.size()) spread();
  link(buckets_, *row.release());
}

std::unique_ptr<Unexpected> UnexpectedList::take(Unexpected& row) noexcept {
  at(buckets_, kAnySource, row.tag).of_tag.remove(row);
  at(buckets_, row.peer, row.tag).of_peer_and_tag.remove(row);
  --size_;
  if (!visits_) gather();
  return std::unique_ptr<Unexpected>(&row);
}

// Afterwards there are one or two rows for each chain, so many rows come or go before the next time.
void UnexpectedList::spread() noexcept {
  try {
    Buckets other(std::max<std::size_t>(1, std::bit_ceil(size_) / 2));
    // Rows of one tag come out of one chain, in their order.
    visit_all([&](Unexpected& row) { link(other, row); });
    buckets_.swap(other);
  } catch (const std::bad_alloc&) {  // then finding takes longer, or the chains stay
  }
}

void UnexpectedList::gather() noexcept {
  if (buckets_.size() > kFewRows && 3 * buckets_.size() > kChainsOfThreeRows * size_) spread();
}

}  // namespace gradwire::messages

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/messages/channel_table_internal.h"

#include <algorithm>
#include <utility>

namespace gradwire::messages {

void ChannelTable::add(std::uint64_t number, std::shared_ptr<const Members> members) {
  channels_.try_emplace(number).first->second.members = std::move(members);
}

ChannelState* ChannelTable::find(std::uint64_t number) noexcept {
  const auto found = channels_.find(number);
  return found == channels_.end() ? nullptr : &found->second;
}

ChannelState* ChannelTable::find_or_begin(std::uint64_t number) {
  ChannelState* const found = find(number);
  if (found != nullptr || is_removed(number)) return found;
  return &channels_.try_emplace(number).first->second;
}

bool ChannelTable::has_ended(std::uint64_t number) const noexcept {
  const auto found = channels_.find(number);
  return found == channels_.end() ? is_removed(number) : found->second.ended != nullptr;
}

bool ChannelTable::is_removed(std::uint64_t number) const noexcept {
  const auto after = removed_.upper_bound(number);
  return after != removed_.begin() && std::prev(after)->second >= number;
}

void ChannelTable::note_removed(std::uint64_t first, std::uint64_t last) {
  // Ranges that touch become one; one may lie within another.
  const auto [range, is_new] = removed_.try_emplace(first, last);
  try {
    if (is_new) oldest_first_.push_back(first);
  } catch (...) {
    removed_.erase(range);
    throw;
  }
  range->second = std::max(range->second, last);
  for (auto later = std::next(range); later != removed_.end() && later->first <= range->second + 1;) {
    range->second = std::max(range->second, later->second);
    later = forget(later);
  }
  if (range != removed_.begin() && std::prev(range)->second + 1 >= first) {
    std::prev(range)->second = std::max(std::prev(range)->second, range->second);
    forget(range);
  }
  if (removed_.size() > kRememberedRanges) forget(removed_.find(oldest_first_.front()));
}

ChannelTable::Ranges::iterator ChannelTable::forget(Ranges::iterator range) {
  // A range that is merged with its neighbour has just begun, mostly; one that is too old is the first.
  const auto place = oldest_first_.front() == range->first
                         ? oldest_first_.begin()
                         : std::prev(std::find(oldest_first_.rbegin(), oldest_first_.rend(), range->first).base());
  oldest_first_.erase(place);
  return removed_.erase(range);
}

}  // namespace gradwire::messages

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The channels of an endpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <iterator>
#include <map>
#include <memory>

#include "gradwire/backend/messages/losses_internal.h"
#include "gradwire/backend/messages/members_internal.h"
#include "gradwire/backend/messages/posted_receives_internal.h"
#include "gradwire/backend/messages/unexpected_list_internal.h"

namespace gradwire::messages {

struct ChannelState {
  std::shared_ptr<const Members> members;  // null: frames came before the channel was added
  std::exception_ptr ended;
  Losses losses;
  UnexpectedList unexpected;
  PostedReceives posted;

  // As Losses::why_unreachable(), of a channel that was added.
  std::exception_ptr why_unreachable(int peer) const noexcept {
    return losses.why_unreachable(peer, members->peers.size() - 1);
  }
};

// A number is that of a channel that is here, of one that was removed, or of one that nobody has named yet. Channels
// stay where they are. Used by one thread at a time.
//
// Removed channels are remembered as ranges of numbers, so that a late frame does not begin one again. Where numbers
// are no sequence (shm), each is a range: so many ranges are remembered, those that began last. No frame is as late as
// that.
class ChannelTable final {
 public:
  static constexpr std::size_t kRememberedRanges = 1 << 14;

  // Messages of the channel may have come before. Throws std::bad_alloc, without effect.
  void add(std::uint64_t number, std::shared_ptr<const Members> members);
  // A rank that made a channel may use it before this one has: then it begins here. Null for a channel that was
  // removed. Throws std::bad_alloc, without effect.
  ChannelState* find_or_begin(std::uint64_t number);
  // Null for a channel that is not here.
  ChannelState* find(std::uint64_t number) noexcept;
  // The channel is here.
  ChannelState& at(std::uint64_t number) { return channels_.at(number); }
  const ChannelState& at(std::uint64_t number) const { return channels_.at(number); }

  // Whether this endpoint's channel was here and has ended.
  bool has_ended(std::uint64_t number) const noexcept;
  // Removes the channels `first` to `last`, whether they were here or not, and calls `visit(channel)` for each that was
  // before it goes. Throws std::bad_alloc, without effect.
  template <class Visit>
  void remove(std::uint64_t first, std::uint64_t last, Visit&& visit) {
    note_removed(first, last);
    const auto from = channels_.lower_bound(first);
    const auto to = channels_.upper_bound(last);
    for (auto channel = from; channel != to; ++channel) visit(channel->second);
    channels_.erase(from, to);
  }
  // Pairs of numbers and channels, for loops that add and remove none.
  auto begin() noexcept { return channels_.begin(); }
  auto end() noexcept { return channels_.end(); }
  auto begin() const noexcept { return channels_.begin(); }
  auto end() const noexcept { return channels_.end(); }

 private:
  bool is_removed(std::uint64_t number) const noexcept;
  using Ranges = std::map<std::uint64_t, std::uint64_t>;  // the first of a range, the last
  void note_removed(std::uint64_t first, std::uint64_t last);
  Ranges::iterator forget(Ranges::iterator range);  // returns the next one

  std::map<std::uint64_t, ChannelState> channels_;
  Ranges removed_;
  std::deque<std::uint64_t> oldest_first_;  // the first of each range, in the order in which they began
};

}  // namespace gradwire::messages

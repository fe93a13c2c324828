// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The messages under way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <utility>
#include <vector>

#include "gradwire/backend/messages/matched_receives_internal.h"
#include "gradwire/backend/messages/message_internal.h"

namespace gradwire::messages {

// Each message has a number that is not used again soon. Owns the messages, and knows how many are not done. A message
// that is done stays for as long as its peer is to hear something of it.
class MessageTable final {
 public:
  // Gives the message, which is not done, its number. Throws std::bad_alloc, without effect.
  void add(const MessagePtr& message) {
    if (free_.empty()) {
      if (free_.capacity() <= rows_.size()) free_.reserve(2 * rows_.size() + 16);  // so that release() cannot fail
      matched_.reserve(rows_.size() + 1);
      rows_.emplace_back();
      free_.push_back(static_cast<std::uint32_t>(rows_.size() - 1));
    }
    const std::uint32_t row = free_.back();
    free_.pop_back();
    rows_[row].message = message;
    message->id = (std::uint64_t{rows_[row].uses} << 32) | (row + 1);
    ++unfinished_;
  }
  // Null when there is no such message any more.
  Message* find(std::uint64_t id) const noexcept {
    const std::uint64_t row = (id & 0xffff'ffffU) - 1;
    if (row >= rows_.size() || rows_[row].uses != id >> 32) return nullptr;
    return rows_[row].message.get();
  }
  // A receive of the table was matched with the offer `other` of its peer.
  void set_matched(Message& receive) noexcept { matched_.add(receive); }
  // The receive that was matched with the offer; null when there is none any more.
  Message* find_matched(int peer, std::uint64_t offer) const noexcept { return matched_.find(peer, offer); }
  // Calls `visit(message)` for each; it may release the message that it was given.
  template <class Visit>
  void for_each(Visit&& visit) const {
    for (std::size_t row = 0; row < rows_.size(); ++row) {
      if (rows_[row].message != nullptr) visit(*rows_[row].message);
    }
  }

  // Ends a message that is not done. It stays in the table.
  void finish(Message& message, const std::exception_ptr& error) noexcept {
    message.end(error);
    --unfinished_;
    ended_some_ = true;
  }
  // Takes a message that is done out of its queue and out of the table. The message may be gone afterwards.
  void release(Message& message) noexcept {
    MessageQueue::remove(message);
    MatchedReceives::remove(message);
    message.stage = Message::Stage::ended;
    const auto row = static_cast<std::uint32_t>(message.id & 0xffff'ffffU) - 1;
    ++rows_[row].uses;
    free_.push_back(row);
    const MessagePtr last = std::move(rows_[row].message);
  }
  // Ends the message, unless it is done, and releases it: nobody is to hear of it any more.
  void abandon(Message& message, const std::exception_ptr& error) noexcept {
    if (!message.done) finish(message, error);
    release(message);
  }

  // The messages that are not done.
  std::size_t unfinished() const noexcept { return unfinished_; }
  // Whether messages have been done since the last call.
  bool take_ended() noexcept { return std::exchange(ended_some_, false); }

 private:
  struct Row {
    MessagePtr message;
    std::uint32_t uses = 0;
  };
  std::vector<Row> rows_;
  std::vector<std::uint32_t> free_;
  MatchedReceives matched_;
  std::size_t unfinished_ = 0;
  bool ended_some_ = false;
};

}  // namespace gradwire::messages

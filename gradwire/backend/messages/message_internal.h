// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// One send or receive, and queues of them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>

#include "gradwire/backend/backend.h"

namespace gradwire::messages {

class MatchedReceives;
class MessageQueue;

// Written by the Matcher and its parts, but for the first six fields. `data` is touched only while `done` is false.
struct Message {
  enum class Direction : std::uint8_t { send, receive };
  enum class Stage : std::uint8_t {
    fresh,       // not begun
    waiting,     // a send that nothing was written of
    offered,     // a send whose offer was written
    sending,     // a send that was accepted
    posted,      // a receive without a message
    accepting,   // a receive whose accept is to be written
    receiving,   // a receive whose pieces come
    pulling,     // a receive that reads its message out of the sender's memory
    reporting,   // such a receive that has read all, whose report is to be written
    reported,    // and was written: the sender is to confirm that the message was there all the time
    confirming,  // a send whose confirmation is to be written
    cancelling,  // a send whose cancel is to be written
    ended,
  };

  Message(Direction message_direction, std::uint64_t message_channel, int message_rank, std::uint32_t message_tag,
          std::byte* buffer, std::size_t length)
      : direction(message_direction),
        channel(message_channel),
        rank(message_rank),
        tag(message_tag),
        data(buffer),
        bytes(length) {
    if (direction == Direction::send) status.bytes = bytes;
  }

  bool is_matched_receive() const noexcept { return stage >= Stage::accepting && stage <= Stage::reported; }
  void end(const std::exception_ptr& why) noexcept {
    error = why;
    done.store(true, std::memory_order_release);
  }

  const Direction direction;
  const std::uint64_t channel;
  const int rank;  // of the other side, or kAnySource
  const std::uint32_t tag;
  std::byte* const data;
  const std::size_t bytes;

  Stage stage = Stage::fresh;
  bool found_offer = false;  // a receive's: Matcher::end_at_once() has found the offer of a message, and no message
  std::atomic<bool> done{false};  // then `error` and `status` stay as they are, and any thread may read them
  int peer = kAnySource;          // the other side on the wire, once that is known
  std::uint64_t id = 0;           // its number here, while it is under way
  std::uint64_t order = 0;        // a posted receive's: which of its channel it was
  std::uint64_t other = 0;        // its number at the other side
  std::size_t moved = 0;          // bytes of it written or read
  std::uint64_t lent = 0;         // a receive's: where pull() finds the message; 0: nowhere
  std::uint64_t burst = 0;        // a receive's: as QuickerWay's
  std::size_t incoming = 0;       // a receive's: the size of the message that was matched
  std::exception_ptr error;
  Request::Status status;

 private:
  friend class MatchedReceives;
  friend class MessageQueue;
  MessageQueue* queue_ = nullptr;
  Message* previous_ = nullptr;
  Message* next_ = nullptr;
  Message* matched_next_ = nullptr;
  Message** matched_link_ = nullptr;  // what points at this in its chain
};
using MessagePtr = std::shared_ptr<Message>;

// Messages in a row, linked through themselves: going from one queue to another takes no memory, so it cannot fail.
// A message is in one queue at a time. Does not own its messages.
class MessageQueue {
 public:
  MessageQueue() = default;
  MessageQueue(const MessageQueue&) = delete;
  MessageQueue& operator=(const MessageQueue&) = delete;

  bool empty() const noexcept { return first_ == nullptr; }
  Message* front() const noexcept { return first_; }
  static Message* after(const Message& message) noexcept { return message.next_; }

  void push_back(Message& message) noexcept {
    message.queue_ = this;
    message.previous_ = last_;
    message.next_ = nullptr;
    (last_ == nullptr ? first_ : last_->next_) = &message;
    last_ = &message;
  }
  // Takes the message out of the queue that it is in, if any.
  static void remove(Message& message) noexcept {
    MessageQueue* const queue = message.queue_;
    if (queue == nullptr) return;
    (message.previous_ == nullptr ? queue->first_ : message.previous_->next_) = message.next_;
    (message.next_ == nullptr ? queue->last_ : message.next_->previous_) = message.previous_;
    message.queue_ = nullptr;
    message.previous_ = message.next_ = nullptr;
  }

 private:
  Message* first_ = nullptr;
  Message* last_ = nullptr;
};

}  // namespace gradwire::messages

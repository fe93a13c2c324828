// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The receives of a channel that wait for a message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gradwire/backend/messages/message_internal.h"

namespace gradwire::messages {

// Queues by peer and tag, each in the order of posting: a receive is found among few, however many wait. Up to
// kFewReceives lie in one queue. Does not own the receives; one that leaves its queue is not posted any more. Used by
// one thread at a time.
class PostedReceives final {
 public:
  // Throws std::bad_alloc.
  PostedReceives() : queues_(1) {}

  // The receive, which is in no queue, is behind all others.
  void add(Message& receive) noexcept;
  // The first receive that takes a message of the peer; null when there is none.
  Message* find(int source, std::uint32_t tag) const noexcept;

 private:
  static constexpr std::size_t kFewReceives = 16;
  using Queues = std::vector<MessageQueue>;  // as many as a power of two

  static MessageQueue& queue(Queues& queues, int peer, std::uint32_t tag) noexcept;
  Message* first(int peer, std::uint32_t tag) const noexcept;
  std::size_t count() const noexcept;
  void spread() noexcept;

  Queues queues_;
  std::uint64_t posted_ = 0;          // receives, ever
  bool takes_any_ = false;            // a receive from any rank was among them
  std::size_t added_ = 0;             // since they were counted; those that have left are in it
  std::size_t limit_ = kFewReceives;  // of added_, until they are counted again
};

}  // namespace gradwire::messages

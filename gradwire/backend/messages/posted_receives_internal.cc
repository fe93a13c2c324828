// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/messages/posted_receives_internal.h"

#include <bit>
#include <new>

#include "gradwire/backend/messages/match_key_internal.h"

namespace gradwire::messages {

MessageQueue& PostedReceives::queue(Queues& queues, int peer, std::uint32_t tag) noexcept {
  return queues[match_place(peer, tag, queues.size())];
}

void PostedReceives::add(Message& receive) noexcept {
  receive.order = posted_++;
  if (++added_ > limit_) spread();
  takes_any_ = takes_any_ || receive.peer == kAnySource;
  queue(queues_, receive.peer, receive.tag).push_back(receive);
}

Message* PostedReceives::find(int source, std::uint32_t tag) const noexcept {
  Message* const of_source = first(source, tag);
  Message* const of_any = takes_any_ ? first(kAnySource, tag) : nullptr;
  if (of_source == nullptr || of_any == nullptr) return of_source == nullptr ? of_any : of_source;
  return of_source->order < of_any->order ? of_source : of_any;
}

Message* PostedReceives::first(int peer, std::uint32_t tag) const noexcept {
  Message* receive = queues_[match_place(peer, tag, queues_.size())].front();
  while (receive != nullptr && !(receive->tag == tag && receive->peer == peer)) {
    receive = MessageQueue::after(*receive);
  }
  return receive;
}

std::size_t PostedReceives::count() const noexcept {
  std::size_t all = 0;
  for (const MessageQueue& each : queues_) {
    for (Message* receive = each.front(); receive != nullptr; receive = MessageQueue::after(*receive)) ++all;
  }
  return all;
}

// Makes more queues, where too many receives lie in them.
void PostedReceives::spread() noexcept {
  added_ = count() + 1;
  if (2 * added_ <= limit_) return;
  try {
    Queues more(std::bit_ceil(added_));
    // Receives of one peer and tag come out of one queue, in their order.
    for (MessageQueue& each : queues_) {
      while (Message* const receive = each.front()) {
        MessageQueue::remove(*receive);
        queue(more, receive->peer, receive->tag).push_back(*receive);
      }
    }
    queues_.swap(more);
    limit_ = 2 * queues_.size();
  } catch (const std::bad_alloc&) {  // then finding takes longer
    added_ = 0;
  }
}

}  // namespace gradwire::messages

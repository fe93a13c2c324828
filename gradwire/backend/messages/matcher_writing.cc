// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The frames that go, and the order in which they do.
#include <algorithm>
#include <utility>

#include "gradwire/backend/messages/matcher_internal.h"

namespace gradwire::messages {
namespace {

using Stage = Message::Stage;

}  // namespace

bool Matcher::poll() {
  const bool came = wire_.read(*this);
  const bool pulled = pull_piece();
  return write_all() || pulled || came;
}

bool Matcher::write_all() {
  const std::uint64_t before = written_;
  for (const int index : due_) write_to(index);
  std::erase_if(due_, [&](int index) {
    peer(index).due = has_work(peer(index));
    return !peer(index).due;
  });
  wire_.flush();
  return written_ != before;
}

void Matcher::mark_due(int index) noexcept {
  if (!std::exchange(peer(index).due, true)) due_.push_back(index);
}

// Told when half of a limit was freed: often enough that a peer never waits for it, and seldom.
bool Matcher::is_credit_due(const Peer& to) const noexcept {
  return (to.freed_bytes > 0 && to.freed_bytes >= limits_.eager_bytes / 2) ||
         (to.freed_offers > 0 && to.freed_offers >= limits_.offers / 2);
}

bool Matcher::has_work(const Peer& to) const noexcept {
  return !to.answers.empty() || !to.ends.empty() || !to.asks.empty() || !to.sends.empty() || !to.streams.empty() ||
         is_credit_due(to);
}

bool Matcher::write(int to, const Frame& frame, const std::byte* payload, std::size_t bytes) {
  if (!wire_.write(to, frame, {payload, bytes})) return false;
  ++written_;
  return true;
}

void Matcher::write_to(int index) {
  // The end of a channel before the messages that it cancels: the peer is to hear why.
  if (!write_credit(index) || !write_ends(index) || !write_asks(index) || !write_answers(index)) return;
  // One piece after each send, so that neither holds up the other.
  for (std::uint64_t before = ~written_; before != written_;) {
    before = written_;
    if (!write_send(index) || !write_piece(index)) return;
  }
}

bool Matcher::write_credit(int index) {
  Peer& to = peer(index);
  if (!is_credit_due(to)) return true;
  if (!write(index, {FrameKind::credit, 0, 0, to.freed_offers, 0, to.freed_bytes}, nullptr, 0)) return false;
  to.freed_bytes = to.freed_offers = 0;
  return true;
}

bool Matcher::write_answers(int index) {
  MessageQueue& answers = peer(index).answers;
  while (!answers.empty()) {
    Message& message = *answers.front();
    Frame frame{FrameKind::cancel, message.tag, message.channel, message.id, 0, 0};
    if (message.stage != Stage::cancelling) {
      frame.kind = message.stage == Stage::accepting   ? FrameKind::accept
                   : message.stage == Stage::reporting ? FrameKind::report
                                                       : FrameKind::confirm;
      frame.id = message.other;
      frame.reply = message.done ? 0 : message.id;
    }
    if (!write(index, frame, nullptr, 0)) return false;
    if (message.stage == Stage::confirming) {
      abandon(message, nullptr);
      continue;
    }
    if (message.done) {
      release(message);
      continue;
    }
    MessageQueue::remove(message);
    message.stage = message.stage == Stage::accepting ? Stage::receiving : Stage::reported;
    --unwritten_;
  }
  return true;
}

bool Matcher::has_eager_credit(const Peer& to, std::size_t bytes) const noexcept {
  return bytes <= limits_.eager_message && to.eager_bytes + bytes + kEagerOverhead <= limits_.eager_bytes;
}

bool Matcher::write_send(int index) {
  Peer& to = peer(index);
  if (to.sends.empty()) return true;
  Message& message = *to.sends.front();
  Frame frame{FrameKind::message, message.tag, message.channel, 0, 0, message.bytes};
  if (has_eager_credit(to, message.bytes)) {
    if (!write(index, frame, message.data, message.bytes)) return false;
    to.eager_bytes += message.bytes + kEagerOverhead;
    abandon(message, nullptr);
    return true;
  }
  if (to.offers >= limits_.offers) return true;  // no room at the receiver, whatever the wire has
  frame.kind = FrameKind::offer;
  frame.id = message.id;
  frame.reply = wire_.lend({message.data, message.bytes});
  if (!write(index, frame, nullptr, 0)) return false;
  ++to.offers;
  MessageQueue::remove(message);
  message.stage = Stage::offered;
  return true;
}

bool Matcher::write_piece(int index) {
  MessageQueue& streams = peer(index).streams;
  if (streams.empty()) return true;
  Message& message = *streams.front();
  const std::size_t bytes = std::min(wire_.max_payload(), message.bytes - message.moved);
  const Frame frame{FrameKind::piece, message.tag, message.channel, message.other, 0, bytes};
  if (!write(index, frame, message.data + message.moved, bytes)) return false;
  message.moved += bytes;
  MessageQueue::remove(message);
  if (message.moved == message.bytes) {
    abandon(message, nullptr);
  } else {
    streams.push_back(message);  // in turn with the other streams
  }
  return true;
}

}  // namespace gradwire::messages

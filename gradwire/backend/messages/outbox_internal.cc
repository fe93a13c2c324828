// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/messages/outbox_internal.h"

#include <algorithm>
#include <utility>

namespace gradwire::messages {
namespace {

using Stage = Message::Stage;

Frame frame_of_small(const Message& send) noexcept {
  return {FrameKind::message, send.tag, send.channel, 0, 0, send.bytes};
}

}  // namespace

Outbox::Outbox(Wire& wire, const Limits& limits, MessageTable& table)
    : wire_(wire), limits_(limits), table_(table), peers_(static_cast<std::size_t>(wire.size())) {
  due_.reserve(peers_.size());
}

// --- what is to be written -----------------------------------------------------------------------------------------

void Outbox::mark_due(int index) noexcept {
  if (!std::exchange(peer(index).due, true)) due_.push_back(index);
}

void Outbox::add_send(Message& send) noexcept {
  send.stage = Stage::waiting;
  queue_of(peer(send.peer), send).push_back(send);
  mark_due(send.peer);
}

void Outbox::add_stream(Message& send) noexcept {
  send.stage = Stage::sending;
  peer(send.peer).streams.push_back(send);
  mark_due(send.peer);
}

void Outbox::add_answer(Message& message, Stage stage) noexcept {
  message.stage = stage;
  peer(message.peer).answers.push_back(message);
  mark_due(message.peer);
}

void Outbox::tell(int to, const EndNotice& notice) {
  peer(to).ends.push_back(notice);
  mark_due(to);
}

void Outbox::ask(int to, std::uint64_t channel) {
  peer(to).asks.push_back(channel);
  mark_due(to);
}

bool Outbox::tells_of(int to, std::uint64_t channel) const noexcept {
  const std::list<EndNotice>& ends = peer(to).ends;
  return std::any_of(ends.begin(), ends.end(), [&](const EndNotice& end) { return end.frame.channel == channel; });
}

void Outbox::drop_notices() noexcept {
  for (Peer& to : peers_) {
    to.ends.clear();
    to.asks.clear();
  }
}

void Outbox::free_message(int of, std::size_t bytes) noexcept {
  peer(of).credit.free_message(bytes);
  if (peer(of).credit.is_due(limits_)) mark_due(of);
}

void Outbox::free_offer(int of) noexcept {
  peer(of).credit.free_offer();
  if (peer(of).credit.is_due(limits_)) mark_due(of);
}

void Outbox::on_credit(int source, const Frame& frame) noexcept { peer(source).credit.restore(frame.bytes, frame.id); }

bool Outbox::has_work(const Peer& to) const noexcept {
  return !to.answers.empty() || !to.ends.empty() || !to.asks.empty() || !to.own_sends.empty() || !to.sends.empty() ||
         !to.streams.empty() || to.credit.is_due(limits_);
}

bool Outbox::has_unwritten() const noexcept {
  return std::any_of(due_.begin(), due_.end(),
                     [&](int index) { return !peer(index).answers.empty() || !peer(index).ends.empty(); });
}

// --- writing -------------------------------------------------------------------------------------------------------

bool Outbox::write_all() {
  const std::uint64_t before = written_;
  for (const int index : due_) write_to(index);
  std::erase_if(due_, [&](int index) {
    peer(index).due = has_work(peer(index));
    return !peer(index).due;
  });
  wire_.flush();
  return written_ != before;
}

bool Outbox::write(int to, const Frame& frame, const std::byte* payload, std::size_t bytes) {
  if (!wire_.write(to, frame, {payload, bytes})) return false;
  ++written_;
  return true;
}

bool Outbox::write_at_once(const Message& send) {
  Peer& to = peer(send.peer);
  if (!queue_of(to, send).empty() || !to.credit.covers_message(limits_, send.bytes)) return false;
  if (!write(send.peer, frame_of_small(send), send.data, send.bytes)) return false;
  to.credit.use_message(send.bytes);
  wire_.flush();
  return true;
}

void Outbox::write_to(int index) {
  // The end of a channel before the messages that it cancels: the peer is to hear why.
  if (!write_credit(index) || !write_ends(index) || !write_asks(index) || !write_answers(index)) return;
  // One piece after each send, so that neither holds up the other.
  for (std::uint64_t before = ~written_; before != written_;) {
    before = written_;
    if (!write_send(index) || !write_piece(index)) return;
  }
}

bool Outbox::write_credit(int index) {
  Credit& credit = peer(index).credit;
  if (!credit.is_due(limits_)) return true;
  const Frame frame{FrameKind::credit, 0, 0, credit.freed_offers(), 0, credit.freed_bytes()};
  if (!write(index, frame, nullptr, 0)) return false;
  credit.note_told();
  return true;
}

bool Outbox::write_ends(int index) {
  std::list<EndNotice>& ends = peer(index).ends;
  while (!ends.empty()) {
    Frame frame = ends.front().frame;
    const std::string& payload = *ends.front().payload;
    frame.bytes = std::min(payload.size(), wire_.max_payload());
    if (!write(index, frame, reinterpret_cast<const std::byte*>(payload.data()), frame.bytes)) return false;
    ends.pop_front();
  }
  return true;
}

bool Outbox::write_asks(int index) {
  std::vector<std::uint64_t>& asks = peer(index).asks;
  while (!asks.empty()) {
    if (!write(index, {FrameKind::ask, 0, asks.back(), 0, 0, 0}, nullptr, 0)) return false;
    asks.pop_back();
  }
  return true;
}

bool Outbox::write_answers(int index) {
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
      table_.abandon(message, nullptr);
      continue;
    }
    if (message.done) {
      table_.release(message);
      continue;
    }
    MessageQueue::remove(message);
    message.stage = message.stage == Stage::accepting ? Stage::receiving : Stage::reported;
  }
  return true;
}

bool Outbox::write_send(int index) {
  Peer& to = peer(index);
  MessageQueue& sends = to.own_sends.empty() ? to.sends : to.own_sends;
  if (sends.empty()) return true;
  Message& message = *sends.front();
  Frame frame = frame_of_small(message);
  if (to.credit.covers_message(limits_, message.bytes)) {
    if (!write(index, frame, message.data, message.bytes)) return false;
    to.credit.use_message(message.bytes);
    table_.abandon(message, nullptr);
    return true;
  }
  if (!to.credit.covers_offer(limits_, is_own(message))) return true;  // no room at the receiver, whatever the wire has
  frame.kind = FrameKind::offer;
  frame.id = message.id;
  frame.reply = wire_.lend({message.data, message.bytes});
  if (!write(index, frame, nullptr, 0)) return false;
  to.credit.use_offer();
  MessageQueue::remove(message);
  message.stage = Stage::offered;
  return true;
}

bool Outbox::write_piece(int index) {
  MessageQueue& streams = peer(index).streams;
  if (streams.empty()) return true;
  Message& message = *streams.front();
  const std::size_t bytes = std::min(wire_.max_payload(), message.bytes - message.moved);
  const Frame frame{FrameKind::piece, message.tag, message.channel, message.other, 0, bytes};
  if (!write(index, frame, message.data + message.moved, bytes)) return false;
  message.moved += bytes;
  MessageQueue::remove(message);
  if (message.moved == message.bytes) {
    table_.abandon(message, nullptr);
  } else {
    streams.push_back(message);  // in turn with the other streams
  }
  return true;
}

}  // namespace gradwire::messages

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/messages/transfers_internal.h"

#include <algorithm>
#include <utility>

namespace gradwire::messages {
namespace {

using Stage = Message::Stage;

}  // namespace

Transfers::Transfers(Wire& wire, std::size_t pulled_piece, std::function<QuickerWay::TimePoint()> clock,
                     MessageTable& table, Outbox& outbox)
    : wire_(wire), pulled_piece_(pulled_piece), table_(table), outbox_(outbox), way_(std::move(clock)) {}

void Transfers::accept(Message& receive, int source, std::uint64_t offer, std::uint64_t lent,
                       const std::exception_ptr& error) noexcept {
  receive.peer = source;
  receive.other = offer;
  receive.lent = lent;
  table_.set_matched(receive);
  if (error == nullptr && lent != 0) {
    const QuickerWay::Begun begun = way_.begin(receive.incoming);
    receive.burst = begun.burst;
    if (begun.way == QuickerWay::Way::pull) {
      receive.stage = Stage::pulling;
      pulls_.push_back(receive);
      return;
    }
  }
  outbox_.add_answer(receive, Stage::accepting);
  if (error != nullptr) table_.finish(receive, error);
}

void Transfers::cancel(Message& message, const std::exception_ptr& reason) noexcept {
  if (message.done || message.stage == Stage::fresh) return;
  switch (message.stage) {
    case Stage::offered:
    case Stage::sending:
      MessageQueue::remove(message);
      outbox_.add_answer(message, Stage::cancelling);
      table_.finish(message, reason);
      return;
    case Stage::confirming:
      message.stage = Stage::cancelling;
      table_.finish(message, reason);
      return;
    case Stage::pulling:
      MessageQueue::remove(message);
      outbox_.add_answer(message, Stage::accepting);
      table_.finish(message, reason);
      return;
    case Stage::reporting:
      message.stage = Stage::accepting;
      table_.finish(message, reason);
      return;
    case Stage::accepting:  // the answer will be that nobody wants the message
      table_.finish(message, reason);
      return;
    default:  // pieces and confirmations that still come find nobody
      table_.abandon(message, reason);
      return;
  }
}

bool Transfers::pull_piece() noexcept {
  if (pulls_.empty()) return false;
  Message& receive = *pulls_.front();
  const std::size_t bytes = std::min(pulled_piece_, receive.incoming - receive.moved);
  const bool came = wire_.pull(receive.peer, receive.lent + receive.moved, {receive.data + receive.moved, bytes});
  MessageQueue::remove(receive);
  if (!came) {
    receive.moved = 0;
    outbox_.add_answer(receive, Stage::accepting);  // it comes in pieces; its time counts as that of pulling
  } else if (receive.moved += bytes; receive.moved == receive.incoming) {
    outbox_.add_answer(receive, Stage::reporting);
  } else {
    pulls_.push_back(receive);
  }
  return true;
}

void Transfers::on_accept(int source, const Frame& frame) noexcept {
  Message* const send = table_.find(frame.id);
  if (send == nullptr || send->stage != Stage::offered || send->peer != source) return;  // it was cancelled
  if (frame.reply == 0) return table_.abandon(*send, nullptr);
  send->other = frame.reply;
  outbox_.add_stream(*send);
}

// Where the send was given up before, its cancel is on the way.
void Transfers::on_report(int source, const Frame& frame) noexcept {
  Message* const send = table_.find(frame.id);
  if (send == nullptr || send->stage != Stage::offered || send->peer != source) return;
  send->other = frame.reply;
  outbox_.add_answer(*send, Stage::confirming);
}

void Transfers::on_confirm(int source, const Frame& frame) noexcept {
  Message* const receive = table_.find(frame.id);
  if (receive == nullptr || receive->stage != Stage::reported || receive->peer != source) return;
  complete(*receive);
}

bool Transfers::on_piece(int source, const Frame& frame, const Payload& payload) noexcept {
  Message* const receive = table_.find(frame.id);
  if (receive == nullptr || receive->stage != Stage::receiving || receive->peer != source) return true;
  if (payload.size() > receive->incoming - receive->moved) return false;
  payload.copy_to(receive->data + receive->moved, receive->incoming);
  receive->moved += payload.size();
  if (receive->moved == receive->incoming) complete(*receive);
  return true;
}

void Transfers::complete(Message& receive) noexcept {
  if (receive.burst != 0) way_.end(receive.burst, receive.incoming);
  table_.abandon(receive, nullptr);
}

Message* Transfers::find_receive(int source, std::uint64_t offer) const noexcept {
  Message* const receive = table_.find_matched(source, offer);
  return receive != nullptr && receive->is_matched_receive() ? receive : nullptr;
}

}  // namespace gradwire::messages

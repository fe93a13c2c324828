// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The frames that come.
#include <new>
#include <optional>
#include <utility>

#include "gradwire/backend/messages/matcher_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::messages {

bool Matcher::poll() {
  const bool came = wire_.read(*this);
  const bool pulled = transfers_.pull_piece();
  return write_all() || pulled || came;
}

bool Matcher::poll_started() {
  holding_ = std::exchange(started_, nullptr);
  held_ = false;
  bool came = false;
  try {
    came = wire_.read(*this);
  } catch (...) {
    holding_ = nullptr;
    throw;
  }
  Message* const receive = std::exchange(holding_, nullptr);
  if (held_ && !receive->done) match_held(*receive);
  const bool pulled = transfers_.pull_piece();
  return write_all() || pulled || came;
}

bool Matcher::on_frame(int source, const Frame& frame, const Payload& payload) {
  try {
    switch (frame.kind) {
      case FrameKind::message:
        on_message(source, frame, payload);
        break;
      case FrameKind::offer:
        on_offer(source, frame);
        break;
      case FrameKind::accept:
        transfers_.on_accept(source, frame);
        break;
      case FrameKind::piece:
        on_piece(source, frame, payload);
        break;
      case FrameKind::cancel:
        on_cancel(source, frame);
        break;
      case FrameKind::report:
        transfers_.on_report(source, frame);
        break;
      case FrameKind::confirm:
        transfers_.on_confirm(source, frame);
        break;
      case FrameKind::credit:
        outbox_.on_credit(source, frame);
        break;
      case FrameKind::end:
      case FrameKind::passed_end:
        on_end(source, frame, payload);
        break;
      case FrameKind::ask:
        answer_if_ended(source, frame.channel);
        break;
    }
    return true;
  } catch (const std::bad_alloc&) {
    return false;  // the frame stays on the wire, so that the peer is held up until there is memory
  }
}

void Matcher::on_message(int source, const Frame& frame, const Payload& payload) {
  answer_if_ended(source, frame.channel);
  ChannelState* const channel = channels_.find_or_begin(frame.channel);
  if (channel == nullptr) return outbox_.free_message(source, frame.bytes);
  Message* const receive = channel->posted.find(source, frame.tag);
  if (receive == nullptr) return unreceived_.keep(channel->unexpected, source, frame, payload);
  const std::exception_ptr error = refusal(*receive, source, payload.size());
  set_source(*receive, *channel, source, payload.size());
  if (error == nullptr) payload.copy_to(receive->data);
  outbox_.free_message(source, frame.bytes);
  table_.abandon(*receive, error);
}

void Matcher::on_offer(int source, const Frame& frame) {
  answer_if_ended(source, frame.channel);
  ChannelState* const channel = channels_.find_or_begin(frame.channel);
  // The sender learns from the end of the channel.
  if (channel == nullptr) return outbox_.free_offer(source);
  Message* const receive = channel->posted.find(source, frame.tag);
  if (receive == nullptr || receive == holding_) {
    unreceived_.keep(channel->unexpected, source, frame, {});
    if (receive != nullptr) {
      held_ = true;
      MessageQueue::remove(*receive);
    }
    return;
  }
  const std::exception_ptr error = refusal(*receive, source, frame.bytes);
  MessageQueue::remove(*receive);
  set_source(*receive, *channel, source, frame.bytes);
  transfers_.accept(*receive, source, frame.id, frame.reply, error);
  outbox_.free_offer(source);
}

void Matcher::on_piece(int source, const Frame& frame, const Payload& payload) {
  if (transfers_.on_piece(source, frame, payload)) return;
  throw InternalError(concat(describe(*table_.find(frame.id)), ": more bytes came than were offered"));
}

void Matcher::on_cancel(int source, const Frame& frame) {
  ChannelState* const channel = channels_.find(frame.channel);
  if (channel == nullptr) return;
  if (Unexpected* const offer = channel->unexpected.find_offer(source, frame.tag, frame.id)) {
    unreceived_.drop(channel->unexpected, *offer);
    return;
  }
  Message* const matched = transfers_.find_receive(source, frame.id);
  if (matched == nullptr) return;
  const auto error = matched->done ? nullptr
                                   : std::make_exception_ptr(PeerError(concat(describe(*matched), ": the sender, rank ",
                                                                              matched->status.source, ", gave up"),
                                                                       {matched->status.source}));
  table_.abandon(*matched, error);
}

void Matcher::on_end(int source, const Frame& frame, const Payload& payload) {
  ChannelState* const channel = channels_.find_or_begin(frame.channel);
  if (channel == nullptr) return;
  const std::optional<HeardEnd> heard = ends_.read(source, frame, payload);
  if (!heard) return;
  if (!heard->is_passed) {
    if (!lose_peer(frame.channel, *channel, heard->peer, heard->loss)) return;
  } else {
    // Only who waits for anyone takes another's word.
    if (!channel->losses.break_off(heard->loss.reason)) return;
    end_unreachable(frame.channel, *channel, heard->loss.reason);
  }
  ends_.pass_on(source, heard->to_pass_on);
}

// A partner was told when the channel ended.
void Matcher::answer_if_ended(int source, std::uint64_t channel) {
  if (!ends_.is_told(source) && channels_.has_ended(channel)) ends_.answer(source, channel);
}

}  // namespace gradwire::messages

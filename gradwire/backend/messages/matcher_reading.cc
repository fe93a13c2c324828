// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The frames that come. Numbers that a peer names are looked up and checked: a message may have ended meanwhile.
#include <algorithm>
#include <cstring>
#include <new>

#include "gradwire/backend/messages/matcher_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::messages {
namespace {

using Stage = Message::Stage;

}  // namespace

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
        on_accept(source, frame);
        break;
      case FrameKind::piece:
        on_piece(source, frame, payload);
        break;
      case FrameKind::cancel:
        on_cancel(source, frame);
        break;
      case FrameKind::report:
        on_report(source, frame);
        break;
      case FrameKind::confirm:
        on_confirm(source, frame);
        break;
      case FrameKind::credit:
        on_credit(source, frame);
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

// Null for a channel that was removed. A rank that made a channel may use it before this one has: then it begins here.
Matcher::Channel* Matcher::channel_for(const Frame& frame) {
  const auto found = channels_.find(frame.channel);
  if (found != channels_.end()) return &found->second;
  return is_removed(frame.channel) ? nullptr : &channels_.try_emplace(frame.channel).first->second;
}

Message* Matcher::find_posted(const Channel& channel, int source, std::uint32_t tag) {
  Message* receive = channel.posted.front();
  while (receive != nullptr && !(receive->tag == tag && (receive->peer == kAnySource || receive->peer == source))) {
    receive = MessageQueue::after(*receive);
  }
  return receive;
}

void Matcher::on_message(int source, const Frame& frame, const Payload& payload) {
  answer_if_ended(source, frame.channel);
  Channel* const channel = channel_for(frame);
  if (channel == nullptr) return freed(source, false, frame.bytes);
  Message* const receive = find_posted(*channel, source, frame.tag);
  if (receive == nullptr) return keep(*channel, source, frame, payload);
  const std::exception_ptr error = refusal(*receive, source, payload.size());
  set_source(*receive, *channel, source, payload.size());
  if (error == nullptr) payload.copy_to(receive->data);
  freed(source, false, frame.bytes);
  abandon(*receive, error);
}

void Matcher::on_offer(int source, const Frame& frame) {
  answer_if_ended(source, frame.channel);
  Channel* const channel = channel_for(frame);
  // The sender learns from the end of the channel.
  if (channel == nullptr) return freed(source, true, 0);
  Message* const receive = find_posted(*channel, source, frame.tag);
  if (receive == nullptr) return keep(*channel, source, frame, {});
  const std::exception_ptr error = refusal(*receive, source, frame.bytes);
  MessageQueue::remove(*receive);
  set_source(*receive, *channel, source, frame.bytes);
  accept(*receive, source, frame.id, frame.reply, error);
  freed(source, true, 0);
}

void Matcher::on_accept(int source, const Frame& frame) noexcept {
  Message* const send = open_.find(frame.id);
  if (send == nullptr || send->stage != Stage::offered || send->peer != source) return;  // it was cancelled
  if (frame.reply == 0) return abandon(*send, nullptr);
  send->other = frame.reply;
  send->stage = Stage::sending;
  peer(source).streams.push_back(*send);
  mark_due(source);
}

// Where the send was given up before, its cancel is on the way.
void Matcher::on_report(int source, const Frame& frame) noexcept {
  Message* const send = open_.find(frame.id);
  if (send == nullptr || send->stage != Stage::offered || send->peer != source) return;
  send->other = frame.reply;
  answer(*send, Stage::confirming);
}

void Matcher::on_confirm(int source, const Frame& frame) noexcept {
  Message* const receive = open_.find(frame.id);
  if (receive != nullptr && receive->stage == Stage::reported && receive->peer == source) abandon(*receive, nullptr);
}

bool Matcher::pull_piece() noexcept {
  if (pulls_.empty()) return false;
  Message& receive = *pulls_.front();
  const std::size_t bytes = std::min(limits_.pulled_piece, receive.incoming - receive.moved);
  const bool came = wire_.pull(receive.peer, receive.lent + receive.moved, {receive.data + receive.moved, bytes});
  MessageQueue::remove(receive);
  if (!came) {
    receive.moved = 0;
    answer(receive, Stage::accepting);  // so it comes in pieces
  } else if (receive.moved += bytes; receive.moved == receive.incoming) {
    answer(receive, Stage::reporting);
  } else {
    pulls_.push_back(receive);
  }
  return true;
}

void Matcher::on_piece(int source, const Frame& frame, const Payload& payload) {
  Message* const receive = open_.find(frame.id);
  if (receive == nullptr || receive->stage != Stage::receiving || receive->peer != source) return;
  if (payload.size() > receive->incoming - receive->moved) {
    throw InternalError(concat(describe(*receive), ": more bytes came than were offered"));
  }
  payload.copy_to(receive->data + receive->moved);
  receive->moved += payload.size();
  if (receive->moved == receive->incoming) abandon(*receive, nullptr);
}

void Matcher::on_cancel(int source, const Frame& frame) {
  const auto found = channels_.find(frame.channel);
  if (found == channels_.end()) return;
  UnexpectedList& list = found->second.unexpected;
  const auto offer = std::find_if(list.begin(), list.end(),
                                  [&](const Unexpected& row) { return row.peer == source && row.offer == frame.id; });
  if (offer != list.end()) {
    drop(list, offer);
    return;
  }
  Message* matched = nullptr;
  open_.for_each([&](Message& receive) {
    const bool same = receive.peer == source && receive.other == frame.id;
    if (same && receive.is_matched_receive()) matched = &receive;
  });
  if (matched == nullptr) return;
  const auto error = matched->done ? nullptr
                                   : std::make_exception_ptr(PeerError(concat(describe(*matched), ": the sender, rank ",
                                                                              matched->status.source, ", gave up"),
                                                                       {matched->status.source}));
  abandon(*matched, error);
}

void Matcher::on_credit(int source, const Frame& frame) noexcept {
  Peer& from = peer(source);
  from.eager_bytes -= std::min<std::size_t>(from.eager_bytes, frame.bytes);
  from.offers -= std::min<std::size_t>(from.offers, frame.id);
}

}  // namespace gradwire::messages

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Channels and requests. What nobody has received is in matcher_unreceived.cc, the ends of channels in matcher_ends.cc,
// the frames that come in matcher_reading.cc, those that go in matcher_writing.cc.
#include "gradwire/backend/messages/matcher_internal.h"

#include <algorithm>
#include <new>
#include <utility>

#include "gradwire/base/copy.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::messages {
namespace {

using Stage = Message::Stage;
using Direction = Message::Direction;

// Whether a frame of it waits among the answers.
bool is_answer(Stage stage) {
  return stage == Stage::accepting || stage == Stage::reporting || stage == Stage::confirming ||
         stage == Stage::cancelling;
}

}  // namespace

Matcher::Matcher(Wire& wire, Limits limits)
    : wire_(wire), limits_(limits), peers_(static_cast<std::size_t>(wire.size())) {
  due_.reserve(peers_.size());
  for (int peer = 0; peer < wire.size(); ++peer) all_partners_ = all_partners_ && wire.is_partner(peer);
}

// --- channels ------------------------------------------------------------------------------------------------------

void Matcher::add_channel(std::uint64_t channel, std::shared_ptr<const Members> members) {
  channels_.try_emplace(channel).first->second.members = std::move(members);
}

void Matcher::remove_channels(std::uint64_t first, std::uint64_t last) {
  // Ranges that touch become one; one that was there before may lie within this one.
  const auto range = removed_.insert_or_assign(first, last).first;
  for (auto later = std::next(range); later != removed_.end() && later->first <= last + 1;) {
    range->second = std::max(range->second, later->second);
    later = removed_.erase(later);
  }
  if (range != removed_.begin() && std::prev(range)->second + 1 == first) {
    std::prev(range)->second = range->second;
    removed_.erase(range);
  }
  for (auto channel = channels_.lower_bound(first); channel != channels_.end() && channel->first <= last;) {
    UnexpectedList& list = channel->second.unexpected;
    while (!list.empty()) drop(list, list.begin());
    channel = channels_.erase(channel);
  }
}

bool Matcher::is_removed(std::uint64_t channel) const noexcept {
  const auto after = removed_.upper_bound(channel);
  return after != removed_.begin() && std::prev(after)->second >= channel;
}

void Matcher::fail_all(const std::exception_ptr& reason) noexcept {
  for (auto& [number, channel] : channels_) {
    if (channel.ended == nullptr) channel.ended = reason;
  }
  open_.for_each([&](Message& message) { abandon(message, reason); });
  for (Peer& to : peers_) {
    unwritten_ -= to.ends.size();
    to.ends.clear();
    to.asks.clear();
  }
}

// --- requests ------------------------------------------------------------------------------------------------------

bool Matcher::end_at_once(Message& message) {
  Channel& channel = channel_of(message);
  if (message.rank != kAnySource) message.peer = channel.members->peers[static_cast<std::size_t>(message.rank)];
  if (channel.ended != nullptr) {
    end(message, channel.ended);
  } else if (message.direction == Direction::send) {
    send_at_once(message, channel);
  } else {
    receive_at_once(message, channel);
  }
  return message.done;
}

void Matcher::send_at_once(Message& message, const Channel& channel) {
  if (const auto error = why_unreachable(message, channel)) return end(message, error);
  Peer& to = peer(message.peer);
  // Never before a message that is older.
  if (!to.sends.empty() || !has_eager_credit(to, message.bytes)) return;
  const Frame frame{FrameKind::message, message.tag, message.channel, 0, 0, message.bytes};
  if (!write(message.peer, frame, message.data, message.bytes)) return;
  to.eager_bytes += message.bytes + kEagerOverhead;
  wire_.flush();
  end(message, nullptr);
}

void Matcher::receive_at_once(Message& message, Channel& channel) {
  const auto match = find_unexpected(channel, message);
  if (match == channel.unexpected.end()) {
    if (const auto error = why_unreachable(message, channel)) end(message, error);
    return;
  }
  if (match->offer != 0) return;
  const std::exception_ptr error = refusal(message, match->peer, match->bytes);
  set_source(message, channel, match->peer, match->bytes);
  if (error == nullptr) copy_bytes(message.data, match->payload.get(), match->bytes);
  drop(channel.unexpected, match);
  end(message, error);
}

void Matcher::start(const MessagePtr& message) {
  Channel& channel = channel_of(*message);
  if (message->direction == Direction::send) {
    open_.add(message);
    message->stage = Stage::waiting;
    peer(message->peer).sends.push_back(*message);
    mark_due(message->peer);
    ++unfinished_;
    return;
  }
  const auto match = find_unexpected(channel, *message);
  if (match == channel.unexpected.end()) {
    ask(channel, *message);
    open_.add(message);
    message->stage = Stage::posted;
    channel.posted.push_back(*message);
    ++unfinished_;
    return;
  }
  const std::exception_ptr error = refusal(*message, match->peer, match->bytes);
  open_.add(message);
  ++unfinished_;
  set_source(*message, channel, match->peer, match->bytes);
  accept(*message, match->peer, match->offer, match->lent, error);
  drop(channel.unexpected, match);
}

std::exception_ptr Matcher::why_unreachable(const Message& message, const Channel& channel) const {
  if (message.peer != kAnySource) {
    const auto found = channel.gone.find(message.peer);
    return found == channel.gone.end() ? nullptr : found->second;
  }
  if (channel.broken != nullptr) return channel.broken;
  // Somebody may still send as long as one other rank is there; alone, this rank itself may.
  const std::size_t others = channel.members->peers.size() - 1;
  return others > 0 && channel.gone.size() == others ? channel.gone.begin()->second : nullptr;
}

std::string Matcher::describe(const Message& message) const {
  const bool send = message.direction == Direction::send;
  const Members& members = *channels_.at(message.channel).members;
  return concat(send ? "send" : "receive", " on rank ", members.rank, " of ", members.size(), send ? " to " : " from ",
                message.rank == kAnySource ? std::string("any rank") : concat("rank ", message.rank), ", tag ",
                message.tag, ", ", message.bytes, " bytes");
}

std::exception_ptr Matcher::refusal(const Message& receive, int source, std::size_t bytes) const {
  if (bytes <= receive.bytes) return nullptr;
  const int rank = channels_.at(receive.channel).members->rank_of(source);
  return std::make_exception_ptr(MismatchError(
      concat(describe(receive), ": the message of rank ", rank, " has ", bytes, " bytes; nothing was written")));
}

void Matcher::set_source(Message& receive, const Channel& channel, int source, std::size_t bytes) const {
  receive.status.source = channel.members->rank_of(source);
  receive.status.bytes = receive.incoming = bytes;
}

// A message that is too large for its receive is accepted too: the answer says that nobody wants its pieces.
void Matcher::accept(Message& receive, int source, std::uint64_t offer, std::uint64_t lent,
                     const std::exception_ptr& error) noexcept {
  receive.peer = source;
  receive.other = offer;
  receive.lent = lent;
  if (error == nullptr && lent != 0) {
    receive.stage = Stage::pulling;
    pulls_.push_back(receive);
    return;
  }
  answer(receive, Stage::accepting);
  if (error != nullptr) finish(receive, error);
}

// Puts the message, which is in no queue, among what is to be written to its peer.
void Matcher::answer(Message& message, Stage stage) noexcept {
  message.stage = stage;
  peer(message.peer).answers.push_back(message);
  mark_due(message.peer);
  ++unwritten_;
}

void Matcher::end(Message& message, const std::exception_ptr& error) noexcept {
  message.done = true;
  message.error = error;
}

// Ends a message that was started.
void Matcher::finish(Message& message, const std::exception_ptr& error) noexcept {
  end(message, error);
  --unfinished_;
  ended_some_ = true;
}

// Takes the message out of everything that knows it. It may be gone afterwards.
void Matcher::release(Message& message) noexcept {
  if (is_answer(message.stage)) --unwritten_;
  MessageQueue::remove(message);
  message.stage = Stage::ended;
  open_.remove(message);
}

// Ends a message of which nobody is to hear any more.
void Matcher::abandon(Message& message, const std::exception_ptr& error) noexcept {
  if (!message.done) finish(message, error);
  release(message);
}

void Matcher::cancel(Message& message, const std::exception_ptr& reason) noexcept {
  if (message.done || message.stage == Stage::fresh) return;
  switch (message.stage) {
    case Stage::offered:
    case Stage::sending:
      MessageQueue::remove(message);
      answer(message, Stage::cancelling);
      finish(message, reason);
      return;
    case Stage::confirming:
      message.stage = Stage::cancelling;
      finish(message, reason);
      return;
    case Stage::pulling:
      MessageQueue::remove(message);
      answer(message, Stage::accepting);
      finish(message, reason);
      return;
    case Stage::reporting:
      message.stage = Stage::accepting;
      finish(message, reason);
      return;
    case Stage::accepting:  // the answer will be that nobody wants the message
      finish(message, reason);
      return;
    default:  // pieces and confirmations that still come find nobody
      abandon(message, reason);
      return;
  }
}

Matcher::Awaited Matcher::awaited() const {
  Awaited all;
  open_.for_each([&](const Message& message) {
    if (message.done) return;
    const Members& members = *channels_.at(message.channel).members;
    std::vector<bool>& ranks = all[message.channel];
    ranks.resize(members.peers.size());
    const int rank = message.is_matched_receive() ? message.status.source : message.rank;
    if (rank != kAnySource) {
      ranks[static_cast<std::size_t>(rank)] = true;
    } else {
      ranks.assign(members.peers.size(), true);
    }
  });
  for (auto& [channel, ranks] : all) ranks[static_cast<std::size_t>(channels_.at(channel).members->rank)] = false;
  return all;
}

bool Matcher::take_ended() noexcept { return std::exchange(ended_some_, false); }

bool Matcher::busy() const noexcept { return unfinished_ > 0 || unwritten_ > 0; }

}  // namespace gradwire::messages

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Channels and requests. The frames that come are in matcher_reading.cc.
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

}  // namespace

Matcher::Matcher(Wire& wire, Limits limits, std::function<QuickerWay::TimePoint()> clock)
    : wire_(wire),
      outbox_(wire, limits, table_),
      transfers_(wire, limits.pulled_piece, std::move(clock), table_, outbox_),
      unreceived_(outbox_),
      ends_(wire, outbox_) {}

// --- channels ------------------------------------------------------------------------------------------------------

void Matcher::add_channel(std::uint64_t channel, std::shared_ptr<const Members> members) {
  channels_.add(channel, std::move(members));
}

void Matcher::end_channel(std::uint64_t channel, const std::exception_ptr& reason, const Notice* notice) noexcept {
  ChannelState* const found = channels_.find(channel);
  if (found == nullptr || found->ended != nullptr) return;
  found->ended = reason;
  table_.for_each([&](Message& message) {
    if (message.channel == channel) transfers_.cancel(message, reason);
  });
  if (notice == nullptr) return;
  try {
    ends_.announce(channel, *found->members, *notice);
  } catch (const std::bad_alloc&) {  // those who were not told learn by their deadlines
  }
}

void Matcher::end_all(const std::exception_ptr& reason, const Notice& notice) noexcept {
  for (const auto& [number, channel] : channels_) {
    if (channel.members != nullptr) end_channel(number, reason, &notice);
  }
}

void Matcher::remove_channels(std::uint64_t first, std::uint64_t last) {
  channels_.remove(first, last, [&](ChannelState& channel) { unreceived_.drop_all(channel.unexpected); });
  ends_.forget(first, last);
}

void Matcher::fail_rank(std::uint64_t channel, int rank, const Loss& loss) {
  ChannelState* const found = channels_.find(channel);
  if (found != nullptr) lose_peer(channel, *found, found->members->peer(rank), loss);
}

void Matcher::fail_all(const std::exception_ptr& reason) noexcept {
  for (auto& [number, channel] : channels_) {
    if (channel.ended == nullptr) channel.ended = reason;
  }
  table_.for_each([&](Message& message) { table_.abandon(message, reason); });
  outbox_.drop_notices();
}

bool Matcher::lose_peer(std::uint64_t number, ChannelState& channel, int lost, const Loss& loss) {
  if (!channel.losses.add(lost, loss.reason)) return false;
  // What it sent and nobody received is there still; what it only offered is not.
  unreceived_.drop_offers(channel.unexpected, lost);
  const bool breaks = !loss.left && channel.losses.break_off(loss.reason);
  end_unreachable(number, channel, loss.reason);
  return breaks;
}

void Matcher::end_unreachable(std::uint64_t number, ChannelState& channel, const std::exception_ptr& reason) {
  bool awaits_anyone = false;
  table_.for_each([&](Message& message) {
    if (message.channel != number) return;
    if (channel.why_unreachable(message.peer) != nullptr) return table_.abandon(message, reason);
    awaits_anyone = awaits_anyone || message.peer == kAnySource;
  });
  try {
    if (awaits_anyone) ends_.ask(number, *channel.members, channel.losses, kAnySource);
  } catch (const std::bad_alloc&) {  // the deadline ends it
  }
}

Unreceived::Kept Matcher::kept(int peer) const noexcept {
  Unreceived::Kept all;
  for (const auto& [number, channel] : channels_) {
    const Unreceived::Kept part = Unreceived::kept(channel.unexpected, peer);
    all.bytes += part.bytes;
    all.offers += part.offers;
  }
  return all;
}

// --- requests ------------------------------------------------------------------------------------------------------

bool Matcher::end_at_once(Message& message) {
  ChannelState& channel = channels_.at(message.channel);
  if (message.rank != kAnySource) message.peer = channel.members->peer(message.rank);
  if (channel.ended != nullptr) {
    message.end(channel.ended);
  } else if (message.direction == Direction::send) {
    send_at_once(message, channel);
  } else {
    receive_at_once(message, channel);
  }
  return message.done;
}

void Matcher::send_at_once(Message& message, const ChannelState& channel) {
  if (const auto error = channel.why_unreachable(message.peer)) return message.end(error);
  if (outbox_.write_at_once(message)) message.end(nullptr);
}

void Matcher::receive_at_once(Message& message, ChannelState& channel) {
  Unexpected* const match = channel.unexpected.find(message.peer, message.tag);
  if (match == nullptr) {
    if (const auto error = channel.why_unreachable(message.peer)) message.end(error);
    return;
  }
  message.found_offer = match->offer != 0;
  if (message.found_offer) return;
  const std::exception_ptr error = refusal(message, match->peer, match->bytes);
  set_source(message, channel, match->peer, match->bytes);
  if (error == nullptr) copy_bytes(message.data, match->payload.get(), match->bytes);
  unreceived_.drop(channel.unexpected, *match);
  message.end(error);
}

void Matcher::start(const MessagePtr& message) {
  started_ = nullptr;
  ChannelState& channel = channels_.at(message->channel);
  if (message->direction == Direction::send) {
    table_.add(message);
    outbox_.add_send(*message);
    return;
  }
  Unexpected* const match = channel.unexpected.find(message->peer, message->tag);
  if (match == nullptr) {
    ends_.ask(message->channel, *channel.members, channel.losses, message->peer);
    table_.add(message);
    message->stage = Stage::posted;
    channel.posted.add(*message);
    started_ = message.get();
    return;
  }
  const std::exception_ptr error = refusal(*message, match->peer, match->bytes);
  table_.add(message);
  set_source(*message, channel, match->peer, match->bytes);
  transfers_.accept(*message, match->peer, match->offer, match->lent, error);
  unreceived_.drop(channel.unexpected, *match);
}

// As start(), of a receive that is known already. What has come since its first offer is kept, also small messages.
void Matcher::match_held(Message& receive) {
  ChannelState& channel = channels_.at(receive.channel);
  Unexpected* const match = channel.unexpected.find(receive.peer, receive.tag);
  if (match == nullptr) return channel.posted.add(receive);
  std::exception_ptr error;
  try {
    error = refusal(receive, match->peer, match->bytes);
  } catch (const std::bad_alloc&) {
    error = std::current_exception();
  }
  set_source(receive, channel, match->peer, match->bytes);
  if (match->offer != 0) {
    transfers_.accept(receive, match->peer, match->offer, match->lent, error);
  } else {
    if (error == nullptr) copy_bytes(receive.data, match->payload.get(), match->bytes);
    table_.abandon(receive, error);
  }
  unreceived_.drop(channel.unexpected, *match);
}

void Matcher::cancel(Message& message, const std::exception_ptr& reason) noexcept {
  transfers_.cancel(message, reason);
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

void Matcher::set_source(Message& receive, const ChannelState& channel, int source, std::size_t bytes) {
  receive.status.source = channel.members->rank_of(source);
  receive.status.bytes = receive.incoming = bytes;
}

Matcher::Awaited Matcher::awaited() const {
  Awaited all;
  table_.for_each([&](const Message& message) {
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

}  // namespace gradwire::messages

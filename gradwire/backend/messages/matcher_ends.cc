// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How channels end: here, and at peers.
#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/backend/messages/matcher_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::messages {

// --- this endpoint's -----------------------------------------------------------------------------------------------

void Matcher::end_channel(std::uint64_t channel, const std::exception_ptr& reason, const Notice* notice) noexcept {
  const auto found = channels_.find(channel);
  if (found == channels_.end() || found->second.ended != nullptr) return;
  found->second.ended = reason;
  open_.for_each([&](Message& message) {
    if (message.channel == channel) cancel(message, reason);
  });
  if (notice == nullptr) return;
  const Members& members = *found->second.members;
  try {
    const auto at_fault = static_cast<std::uint32_t>(notice->at_fault.size());
    std::string payload(at_fault * sizeof(int), '\0');
    if (at_fault > 0) std::memcpy(payload.data(), notice->at_fault.data(), payload.size());
    const Frame frame{FrameKind::end, at_fault, channel, static_cast<std::uint64_t>(members.rank),
                      notice->left ? std::uint64_t{1} : std::uint64_t{0}};
    const EndNotice said{frame, std::make_shared<const std::string>(payload + notice->text)};
    remember(said);
    for (int rank = 0; rank < members.size(); ++rank) {
      const int index = members.peers[static_cast<std::size_t>(rank)];
      if (rank != members.rank && wire_.is_joined(index)) tell(index, said);
    }
  } catch (const std::bad_alloc&) {  // those who were not told learn by their deadlines
  }
}

void Matcher::end_all(const std::exception_ptr& reason, const Notice& notice) noexcept {
  for (const auto& [number, channel] : channels_) {
    if (channel.members != nullptr) end_channel(number, reason, &notice);
  }
}

void Matcher::remember(const EndNotice& notice) {
  if (all_partners_) return;
  if (notice.frame.reply != 0) {
    left_ = notice;
    return;
  }
  failed_.insert_or_assign(notice.frame.channel, notice);
  if (failed_.size() > kEndsKept) failed_.erase(failed_.begin());
}

void Matcher::tell(int to, const EndNotice& notice) {
  peer(to).ends.push_back(notice);
  ++unwritten_;
  mark_due(to);
}

// A partner was told when the channel ended.
void Matcher::answer_if_ended(int source, std::uint64_t channel) {
  if (all_partners_ || wire_.is_partner(source)) return;
  const auto found = channels_.find(channel);
  if (found == channels_.end() ? !is_removed(channel) : found->second.ended == nullptr) return;
  const auto failed = failed_.find(channel);
  if (failed == failed_.end() && !left_) return;
  EndNotice notice = failed == failed_.end() ? *left_ : failed->second;
  notice.frame.channel = channel;
  const std::list<EndNotice>& ends = peer(source).ends;
  if (std::none_of(ends.begin(), ends.end(), [&](const EndNotice& end) { return end.frame.channel == channel; })) {
    tell(source, notice);
  }
}

bool Matcher::write_ends(int index) {
  std::list<EndNotice>& ends = peer(index).ends;
  while (!ends.empty()) {
    Frame frame = ends.front().frame;
    const std::string& payload = *ends.front().payload;
    frame.bytes = std::min(payload.size(), wire_.max_payload());
    if (!write(index, frame, reinterpret_cast<const std::byte*>(payload.data()), frame.bytes)) return false;
    ends.pop_front();
    --unwritten_;
  }
  return true;
}

// --- other ranks' --------------------------------------------------------------------------------------------------

void Matcher::ask(Channel& channel, const Message& receive) {
  if (all_partners_) return;
  if (receive.peer != kAnySource) return ask(channel, receive.channel, receive.peer);
  ask_around(channel, receive.channel);
}

void Matcher::ask(Channel& channel, std::uint64_t number, int to) {
  if (wire_.is_partner(to) || channel.asked.contains(to)) return;
  std::vector<std::uint64_t>& asks = peer(to).asks;
  asks.reserve(asks.size() + 1);
  channel.asked.insert(to);
  asks.push_back(number);
  mark_due(to);
}

// Who waits for anyone hears from its partners. Without one it asks everybody.
void Matcher::ask_around(Channel& channel, std::uint64_t number) {
  const Members& members = *channel.members;
  const auto rests = [&](int each) { return !channel.gone.contains(each) && each != members.peer(members.rank); };
  if (std::any_of(members.peers.begin(), members.peers.end(),
                  [&](int each) { return rests(each) && wire_.is_partner(each); })) {
    return;
  }
  for (const int each : members.peers) {
    if (rests(each)) ask(channel, number, each);
  }
}

bool Matcher::write_asks(int index) {
  std::vector<std::uint64_t>& asks = peer(index).asks;
  while (!asks.empty()) {
    if (!write(index, {FrameKind::ask, 0, asks.back(), 0, 0, 0}, nullptr, 0)) return false;
    asks.pop_back();
  }
  return true;
}

void Matcher::on_end(int source, const Frame& frame, const Payload& payload) {
  Channel* const channel = channel_for(frame);
  if (channel == nullptr) return;
  const bool is_passed = frame.kind == FrameKind::passed_end;
  if (is_passed && frame.reply >= peers_.size()) {
    throw InternalError(concat("a frame tells of the end of peer ", frame.reply, ", which there is not"));
  }
  const int lost = is_passed ? static_cast<int>(frame.reply) : source;
  if (is_passed && wire_.is_partner(lost)) return;  // it tells this endpoint itself
  EndNotice notice{frame, nullptr};
  std::string text(payload.size(), '\0');
  payload.copy_to(reinterpret_cast<std::byte*>(text.data()));
  if (!all_partners_) notice.payload = std::make_shared<const std::string>(text);
  if (frame.tag > kMaxWorldSize || frame.tag * sizeof(int) > text.size()) {
    throw InternalError(concat("a frame of rank ", frame.id, " names ", frame.tag, " ranks at fault, and holds fewer"));
  }
  std::vector<int> at_fault(frame.tag);
  if (frame.tag > 0) std::memcpy(at_fault.data(), text.data(), frame.tag * sizeof(int));
  text.erase(0, frame.tag * sizeof(int));
  if (at_fault.empty()) at_fault.push_back(static_cast<int>(frame.id));
  const auto reason = std::make_exception_ptr(PeerError(text, at_fault));
  if (is_passed) {
    // The rank's own word comes behind what it had sent: only who waits for anyone takes another's.
    if (channel->broken != nullptr) return;
    channel->broken = reason;
    end_unreachable(frame.channel, *channel, reason);
  } else if (!lose_peer(frame.channel, *channel, lost, {reason, frame.reply != 0})) {
    return;
  }
  notice.frame.kind = FrameKind::passed_end;
  notice.frame.reply = static_cast<std::uint64_t>(lost);
  pass_on(source, notice);
}

// The failures that follow the first are told to those who ask.
void Matcher::pass_on(int source, const EndNotice& notice) noexcept {
  if (all_partners_) return;
  try {
    for (int to = 0; to < static_cast<int>(peers_.size()); ++to) {
      const bool knows = to == source || to == static_cast<int>(notice.frame.reply);
      if (!knows && wire_.is_partner(to)) tell(to, notice);
    }
  } catch (const std::bad_alloc&) {  // others pass it on, too
  }
}

void Matcher::fail_rank(std::uint64_t channel, int rank, const Loss& loss) {
  const auto found = channels_.find(channel);
  if (found == channels_.end()) return;
  lose_peer(channel, found->second, found->second.members->peer(rank), loss);
}

bool Matcher::lose_peer(std::uint64_t number, Channel& channel, int lost, const Loss& loss) {
  if (!channel.gone.try_emplace(lost, loss.reason).second) return false;
  // What it sent and nobody received is there still; what it only offered is not.
  for (auto row = channel.unexpected.begin(); row != channel.unexpected.end();) {
    row = row->peer == lost && row->offer != 0 ? drop(channel.unexpected, row) : std::next(row);
  }
  const bool breaks = !loss.left && channel.broken == nullptr;
  if (breaks) channel.broken = loss.reason;
  end_unreachable(number, channel, loss.reason);
  return breaks;
}

void Matcher::end_unreachable(std::uint64_t number, Channel& channel, const std::exception_ptr& reason) {
  bool awaits_anyone = false;
  open_.for_each([&](Message& message) {
    if (message.channel != number) return;
    if (why_unreachable(message, channel) != nullptr) return abandon(message, reason);
    awaits_anyone = awaits_anyone || message.peer == kAnySource;
  });
  try {
    if (awaits_anyone && !all_partners_) ask_around(channel, number);
  } catch (const std::bad_alloc&) {  // the deadline ends it
  }
}

}  // namespace gradwire::messages

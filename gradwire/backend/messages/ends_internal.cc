// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/messages/ends_internal.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <new>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::messages {

Ends::Ends(Wire& wire, Outbox& outbox) : wire_(wire), outbox_(outbox) {
  for (int peer = 0; peer < wire.size(); ++peer) all_partners_ = all_partners_ && wire.is_partner(peer);
}

// --- this endpoint's -----------------------------------------------------------------------------------------------

void Ends::announce(std::uint64_t channel, const Members& members, const Notice& notice) {
  const auto at_fault = static_cast<std::uint32_t>(notice.at_fault.size());
  std::string payload(at_fault * sizeof(int), '\0');
  if (at_fault > 0) std::memcpy(payload.data(), notice.at_fault.data(), payload.size());
  const Frame frame{FrameKind::end, at_fault, channel, static_cast<std::uint64_t>(members.rank),
                    notice.left ? std::uint64_t{1} : std::uint64_t{0}};
  const EndNotice said{frame, std::make_shared<const std::string>(payload + notice.text)};
  remember(said);
  for (int rank = 0; rank < members.size(); ++rank) {
    const int index = members.peer(rank);
    if (rank != members.rank && wire_.is_joined(index)) outbox_.tell(index, said);
  }
}

void Ends::remember(const EndNotice& notice) {
  if (all_partners_) return;
  if (notice.frame.reply != 0) {
    left_ = notice;
    return;
  }
  const auto [row, is_new] = failed_.insert_or_assign(notice.frame.channel, notice);
  if (!is_new) return;
  try {
    failed_in_order_.push_back(notice.frame.channel);
  } catch (const std::bad_alloc&) {
    failed_.erase(row);
    throw;
  }
  if (failed_.size() <= kEndsKept) return;
  failed_.erase(failed_in_order_.front());
  failed_in_order_.pop_front();
}

bool Ends::is_told(int peer) const noexcept { return all_partners_ || wire_.is_partner(peer); }

void Ends::answer(int peer, std::uint64_t channel) {
  const auto failed = failed_.find(channel);
  if (failed == failed_.end() && !left_) return;
  EndNotice notice = failed == failed_.end() ? *left_ : failed->second;
  notice.frame.channel = channel;
  if (!outbox_.tells_of(peer, channel)) outbox_.tell(peer, notice);
}

// --- other ranks' --------------------------------------------------------------------------------------------------

// Who waits for anyone hears from its partners. Without one it asks everybody.
void Ends::ask(std::uint64_t channel, const Members& members, const Losses& losses, int awaited) {
  if (all_partners_) return;
  if (awaited != kAnySource) return ask_peer(channel, awaited);
  const auto rests = [&](int each) { return !losses.contains(each) && each != members.peer(members.rank); };
  if (std::any_of(members.peers.begin(), members.peers.end(),
                  [&](int each) { return rests(each) && wire_.is_partner(each); })) {
    return;
  }
  for (const int each : members.peers) {
    if (rests(each)) ask_peer(channel, each);
  }
}

void Ends::ask_peer(std::uint64_t channel, int peer) {
  if (wire_.is_partner(peer)) return;
  const auto [row, is_first] = asked_.emplace(channel, peer);
  if (!is_first) return;
  try {
    outbox_.ask(peer, channel);
  } catch (const std::bad_alloc&) {
    asked_.erase(row);
    throw;
  }
}

void Ends::forget(std::uint64_t first, std::uint64_t last) noexcept {
  asked_.erase(asked_.lower_bound({first, std::numeric_limits<int>::min()}),
               asked_.upper_bound({last, std::numeric_limits<int>::max()}));
}

std::optional<HeardEnd> Ends::read(int source, const Frame& frame, const Payload& payload) const {
  HeardEnd heard{source, frame.kind == FrameKind::passed_end, {}, {frame, nullptr}};
  if (heard.is_passed) {
    if (frame.reply >= static_cast<std::uint64_t>(wire_.size())) {
      throw InternalError(concat("a frame tells of the end of peer ", frame.reply, ", which there is not"));
    }
    heard.peer = static_cast<int>(frame.reply);
    if (wire_.is_partner(heard.peer)) return std::nullopt;
  } else {
    heard.loss.left = frame.reply != 0;
  }
  std::string text(payload.size(), '\0');
  payload.copy_to(reinterpret_cast<std::byte*>(text.data()));
  heard.to_pass_on.frame.kind = FrameKind::passed_end;
  heard.to_pass_on.frame.reply = static_cast<std::uint64_t>(heard.peer);
  if (!all_partners_) heard.to_pass_on.payload = std::make_shared<const std::string>(text);
  if (frame.tag > kMaxWorldSize || frame.tag * sizeof(int) > text.size()) {
    throw InternalError(concat("a frame of rank ", frame.id, " names ", frame.tag, " ranks at fault, and holds fewer"));
  }
  std::vector<int> at_fault(frame.tag);
  if (frame.tag > 0) std::memcpy(at_fault.data(), text.data(), frame.tag * sizeof(int));
  text.erase(0, frame.tag * sizeof(int));
  if (at_fault.empty()) at_fault.push_back(static_cast<int>(frame.id));
  heard.loss.reason = std::make_exception_ptr(PeerError(text, at_fault));
  return heard;
}

void Ends::pass_on(int source, const EndNotice& notice) noexcept {
  if (all_partners_) return;
  try {
    for (int to = 0; to < wire_.size(); ++to) {
      const bool knows = to == source || to == static_cast<int>(notice.frame.reply);
      if (!knows && wire_.is_partner(to)) outbox_.tell(to, notice);
    }
  } catch (const std::bad_alloc&) {  // others pass it on, too
  }
}

}  // namespace gradwire::messages

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What endpoints tell each other of the ends of channels.
//
// The end of a channel is told to the peers that are connected. Who awaits a message of a rank that is no partner asks
// that rank, once a channel, and who ended the channel before answers; so does who gets a message for such a channel.
// Of the first failure in a channel the partners hear, and pass it on: so receives from any rank end, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/backend/messages/losses_internal.h"
#include "gradwire/backend/messages/members_internal.h"
#include "gradwire/backend/messages/outbox_internal.h"
#include "gradwire/backend/messages/wire_internal.h"

namespace gradwire::messages {

// What the other ranks are told at the end of a channel.
struct Notice {
  std::string text;
  bool left = false;               // as Loss's
  std::vector<int> at_fault = {};  // the ranks whose failure this is, in the numbers of the channel; none: the teller's
};

// The end of a channel of a peer, as a frame told it.
struct HeardEnd {
  int peer = 0;
  bool is_passed = false;  // another peer says so: that one's own word comes behind the messages that it sent
  Loss loss;
  EndNotice to_pass_on;
};

// Where all peers are partners nobody asks, and nothing is remembered. Used by one thread at a time.
class Ends final {
 public:
  // Both must outlive this.
  Ends(Wire& wire, Outbox& outbox);

  // This endpoint has ended a channel: tells the others that are connected, and remembers it for those who ask later.
  // Throws std::bad_alloc; some may have been told then.
  void announce(std::uint64_t channel, const Members& members, const Notice& notice);
  // Whether the peer hears of every end when that comes.
  bool is_told(int peer) const noexcept;
  // The peer, which is_told() does not name, asks for a channel that this endpoint has ended, or writes to it. Throws
  // std::bad_alloc, without effect.
  void answer(int peer, std::uint64_t channel);
  // Asks for the channel's end whoever is waited for: a peer, or with kAnySource the others that are not lost. Throws
  // std::bad_alloc; some may have been asked then.
  void ask(std::uint64_t channel, const Members& members, const Losses& losses, int awaited);
  // The channels were removed.
  void forget(std::uint64_t first, std::uint64_t last) noexcept;

  // Reads a frame of the kind end or passed_end. Nothing where the peer whose end it is tells this endpoint itself.
  // Throws InternalError, std::bad_alloc.
  std::optional<HeardEnd> read(int source, const Frame& frame, const Payload& payload) const;
  // Tells the partners of an end that `source` told. The failures that follow the first in a channel are told to those
  // who ask. Out of memory, tells only some.
  void pass_on(int source, const EndNotice& notice) noexcept;

 private:
  void remember(const EndNotice& notice);
  void ask_peer(std::uint64_t channel, int peer);

  Wire& wire_;
  Outbox& outbox_;
  bool all_partners_ = true;
  std::set<std::pair<std::uint64_t, int>> asked_;  // channels, peers
  // How this endpoint's channels ended that failed, the last kEndsKept of them, and what it says of a channel that it
  // has left.
  static constexpr std::size_t kEndsKept = 256;
  std::map<std::uint64_t, EndNotice> failed_;
  std::deque<std::uint64_t> failed_in_order_;  // the channels of failed_, the oldest end first
  std::optional<EndNotice> left_;
};

}  // namespace gradwire::messages

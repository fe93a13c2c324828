// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Which message belongs to which receive, and what is said to the peers about it, over frames (wire_internal.h).
//
// A message up to Limits::eager_message bytes is written at once and kept by its receiver until somebody receives it. A
// larger one is offered: it stays with its sender, is accepted when its receive is there, and then goes in pieces. Or
// the receiver reads it straight out of the sender's memory, where the wire can do that and it is quicker
// (quicker_way_internal.h): it reports to have done so, and the sender confirms that it had not given the message up
// meanwhile; only then is the message done on both sides. What a peer keeps for this endpoint is bounded by credits
// (Limits): where they are used up, a small message is offered as well, and where those for offers are used up too,
// further sends wait here, in their order.
//
// A message matches the first receive of its channel, source and tag; receives match in the order in which they were
// posted. A send that is cancelled before its receive was there was never sent. One whose receive was there ends that
// receive with a PeerError that names the sender: the receive does not match again, as the messages behind may have
// matched other receives meanwhile. A receive that is cancelled after it has matched uses its message up. Whatever ends
// a request, its buffer is not touched afterwards.
//
// What endpoints tell each other of the ends of channels is in ends_internal.h.
//
// Has no clock of its own, no lock and no thread: it does the same whenever the same calls and frames come in the same
// order, and the given clock, if any, says the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/backend/messages/channel_table_internal.h"
#include "gradwire/backend/messages/ends_internal.h"
#include "gradwire/backend/messages/limits_internal.h"
#include "gradwire/backend/messages/losses_internal.h"
#include "gradwire/backend/messages/members_internal.h"
#include "gradwire/backend/messages/message_internal.h"
#include "gradwire/backend/messages/message_table_internal.h"
#include "gradwire/backend/messages/outbox_internal.h"
#include "gradwire/backend/messages/transfers_internal.h"
#include "gradwire/backend/messages/unreceived_internal.h"
#include "gradwire/backend/messages/wire_internal.h"

namespace gradwire::messages {

// Used by one thread at a time. What throws std::bad_alloc has had no effect then.
class Matcher final : private FrameSink {
 public:
  // `wire` must outlive the matcher. `clock`: as QuickerWay's.
  Matcher(Wire& wire, Limits limits, std::function<QuickerWay::TimePoint()> clock = nullptr);

  // Messages of the channel may have come before. Throws std::bad_alloc.
  void add_channel(std::uint64_t channel, std::shared_ptr<const Members> members);
  // Ends the requests of the channel that are under way with `reason`, and later ones at once; does nothing when the
  // channel has ended before. Tells the other ranks, unless `notice` is null. Out of memory, it may tell only some.
  void end_channel(std::uint64_t channel, const std::exception_ptr& reason, const Notice* notice) noexcept;
  void end_all(const std::exception_ptr& reason, const Notice& notice) noexcept;
  // Forgets the channels `first` to `last`, which have ended; frames of theirs are dropped from here on.
  void remove_channels(std::uint64_t first, std::uint64_t last);
  // The rank's part of the channel cannot come any more: ends the requests that need it with the loss's reason.
  void fail_rank(std::uint64_t channel, int rank, const Loss& loss);
  // Ends everything under way with `reason`, and writes nothing of it.
  void fail_all(const std::exception_ptr& reason) noexcept;

  // Starts a message of a channel that was added. end_at_once() does what can be done without keeping anything and says
  // whether the message is done; where it is not, nothing has happened and start() begins it. So a caller can do what
  // may fail in between. Throws std::bad_alloc.
  bool end_at_once(Message& message);
  void start(const MessagePtr& message);
  // Ends the message with `reason` unless it is done.
  void cancel(Message& message, const std::exception_ptr& reason) noexcept;

  // Reads and writes what the wire has and takes. Returns whether anything moved. Throws InternalError of the wire.
  bool poll();
  // The same right after start(). Offers for the receive that was started are matched when the wire has been read to
  // its end: their senders may have cancelled them before the receive was called.
  bool poll_started();
  // The second half of poll().
  bool write_all() { return outbox_.write_all(); }
  // Whether messages have been done since the last call.
  bool take_ended() noexcept { return table_.take_ended(); }
  // Whether a message is not done, or something is still to be written.
  bool busy() const noexcept { return table_.unfinished() > 0 || outbox_.has_unwritten(); }
  // "receive on rank 0 of 2 from rank 1, tag 3, 64 bytes"
  std::string describe(const Message& message) const;

  // What is kept here of a peer's messages that nobody has received.
  Unreceived::Kept kept(int peer) const noexcept;

  // The ranks that unfinished messages wait for, by channel.
  using Awaited = std::map<std::uint64_t, std::vector<bool>>;
  Awaited awaited() const;

 private:
  // Requests.
  void send_at_once(Message& message, const ChannelState& channel);
  void receive_at_once(Message& message, ChannelState& channel);
  std::exception_ptr refusal(const Message& receive, int source, std::size_t bytes) const;
  static void set_source(Message& receive, const ChannelState& channel, int source, std::size_t bytes);

  void match_held(Message& receive);

  // Frames that come.
  bool on_frame(int source, const Frame& frame, const Payload& payload) override;
  void on_message(int source, const Frame& frame, const Payload& payload);
  void on_offer(int source, const Frame& frame);
  void on_piece(int source, const Frame& frame, const Payload& payload);
  void on_cancel(int source, const Frame& frame);
  void on_end(int source, const Frame& frame, const Payload& payload);
  void answer_if_ended(int source, std::uint64_t channel);

  // Returns whether that is the channel's first loss of a rank that did not leave in good order.
  bool lose_peer(std::uint64_t number, ChannelState& channel, int peer, const Loss& loss);
  void end_unreachable(std::uint64_t number, ChannelState& channel, const std::exception_ptr& reason);

  Wire& wire_;
  MessageTable table_;
  Outbox outbox_;
  Transfers transfers_;
  Unreceived unreceived_;
  Ends ends_;
  ChannelTable channels_;
  Message* started_ = nullptr;  // the receive that start() has posted; poll_started() alone looks at it
  // Within poll_started(): that receive, and whether there was an offer for it. Then it is not posted for the moment.
  Message* holding_ = nullptr;
  bool held_ = false;
};

}  // namespace gradwire::messages

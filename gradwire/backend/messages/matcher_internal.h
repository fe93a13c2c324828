// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Which message belongs to which receive, and what is said to the peers about it, over frames (wire_internal.h).
//
// A message up to Limits::eager_message bytes is written at once and kept by its receiver until somebody receives it. A
// larger one is offered: it stays with its sender, is accepted when its receive is there, and then goes in pieces. Or
// the receiver reads it straight out of the sender's memory, where the wire can do that: it reports to have done so,
// and the sender confirms that it had not given the message up meanwhile; only then is the message done on both sides.
// What a peer keeps for this endpoint is bounded by credits (Limits): where they are used up, a small message is
// offered as well, and where those for offers are used up too, further sends wait here, in their order.
//
// A message matches the first receive of its channel, source and tag; receives match in the order in which they were
// posted. A send that is cancelled before its receive was there was never sent. One whose receive was there ends that
// receive with a PeerError that names the sender: the receive does not match again, as the messages behind may have
// matched other receives meanwhile. A receive that is cancelled after it has matched uses its message up. Whatever ends
// a request, its buffer is not touched afterwards.
//
// The end of a channel is told to the peers that are connected. Who awaits a message of a rank that is no partner asks
// that rank, once a channel, and who ended the channel before answers; so does who gets a message for such a channel.
// Of the first failure in a channel the partners hear, and pass it on: so receives from any rank end, too.
//
// Has no clock, no lock and no thread: it does the same whenever the same calls and frames come in the same order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "gradwire/backend/messages/message_internal.h"
#include "gradwire/backend/messages/wire_internal.h"

namespace gradwire::messages {

struct Limits {
  std::size_t eager_message = 0;  // bytes of the largest message that goes without being asked for
  // What one peer may have written that this endpoint keeps, because nobody has received it: bytes of small messages,
  // each counted with kEagerOverhead more, and offers.
  std::size_t eager_bytes = kMaxUnreceivedBytes;
  std::size_t offers = kMaxUnreceivedOffers;
  std::size_t pulled_piece = std::size_t{1024} << 10;  // bytes read out of a peer's memory in one poll()
};
inline constexpr std::size_t kEagerOverhead = 128;

// The ranks of a channel, as peers of the wire.
struct Members {
  int rank = 0;            // this endpoint's
  std::vector<int> peers;  // by rank
  int size() const noexcept { return static_cast<int>(peers.size()); }
  int peer(int of_rank) const noexcept { return peers[static_cast<std::size_t>(of_rank)]; }
  // The rank that is `peer`. Mostly ranks and peers have the same numbers.
  int rank_of(int peer) const noexcept {
    const auto guess = static_cast<std::size_t>(peer);
    if (guess < peers.size() && peers[guess] == peer) return peer;
    return static_cast<int>(std::find(peers.begin(), peers.end(), peer) - peers.begin());
  }
};

// Why a rank's part of a channel cannot come any more.
struct Loss {
  std::exception_ptr reason;
  // The rank left in good order: a receive from any rank goes on as long as another rank is there. After another loss
  // such a receive ends, as nobody can tell whether that rank's message was the one that it would have got.
  bool left = false;
};

// What the other ranks are told at the end of a channel.
struct Notice {
  std::string text;
  bool left = false;               // as Loss's
  std::vector<int> at_fault = {};  // the ranks whose failure this is, in the numbers of the channel; none: the teller's
};

// Used by one thread at a time. What throws std::bad_alloc has had no effect then.
class Matcher final : private FrameSink {
 public:
  // `wire` must outlive the matcher.
  Matcher(Wire& wire, Limits limits);

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
  // The second half of poll().
  bool write_all();
  // Whether messages have been done since the last call.
  bool take_ended() noexcept;
  // Whether a message is not done, or something is still to be written.
  bool busy() const noexcept;
  // "receive on rank 0 of 2 from rank 1, tag 3, 64 bytes"
  std::string describe(const Message& message) const;

  // What is kept here of a peer's messages that nobody has received, as Limits counts it.
  struct Kept {
    std::size_t bytes = 0;
    std::size_t offers = 0;
  };
  Kept kept(int peer) const noexcept;

  // The ranks that unfinished messages wait for, by channel.
  using Awaited = std::map<std::uint64_t, std::vector<bool>>;
  Awaited awaited() const;

 private:
  // A message or an offer that nobody has received.
  struct Unexpected {
    int peer = 0;
    std::uint32_t tag = 0;
    std::uint64_t offer = 0;  // the sender's number; 0: a small message
    std::uint64_t lent = 0;   // an offer's: as Message's
    std::size_t bytes = 0;
    std::unique_ptr<std::byte[]> payload;
  };
  using UnexpectedList = std::list<Unexpected>;
  struct Channel {
    std::shared_ptr<const Members> members;  // null: frames came before add_channel()
    std::exception_ptr ended;
    std::map<int, std::exception_ptr> gone;  // by peer
    std::exception_ptr broken;               // the first loss of a rank that did not leave in good order
    UnexpectedList unexpected;
    MessageQueue posted;
    std::set<int> asked;  // peers
  };
  // What is said of the end of a channel: an end, or a passed_end.
  struct EndNotice {
    Frame frame;
    std::shared_ptr<const std::string> payload;
  };
  struct Peer {
    // To be written, in this order of urgency; the last two in turn.
    MessageQueue answers;  // accepts, reports, confirmations and cancels
    std::list<EndNotice> ends;
    std::vector<std::uint64_t> asks;  // channels
    MessageQueue sends;               // not begun
    MessageQueue streams;             // accepted
    // What the peer keeps of this endpoint's, as far as it has said, and what was freed here and not yet told.
    std::size_t eager_bytes = 0;
    std::size_t offers = 0;
    std::size_t freed_bytes = 0;
    std::size_t freed_offers = 0;
    bool due = false;  // it is in due_
  };

  // Something may be to be written to the peer: what goes is looked for at these only, as there may be thousands.
  void mark_due(int index) noexcept;
  bool is_credit_due(const Peer& to) const noexcept;
  bool has_work(const Peer& to) const noexcept;
  Peer& peer(int index) noexcept { return peers_[static_cast<std::size_t>(index)]; }
  Channel& channel_of(const Message& message) { return channels_.at(message.channel); }
  bool is_removed(std::uint64_t channel) const noexcept;
  Channel* channel_for(const Frame& frame);

  // Requests.
  void send_at_once(Message& message, const Channel& channel);
  void receive_at_once(Message& message, Channel& channel);
  std::exception_ptr why_unreachable(const Message& message, const Channel& channel) const;
  std::exception_ptr refusal(const Message& receive, int source, std::size_t bytes) const;
  void set_source(Message& receive, const Channel& channel, int source, std::size_t bytes) const;
  void accept(Message& receive, int source, std::uint64_t offer, std::uint64_t lent,
              const std::exception_ptr& error) noexcept;
  void answer(Message& message, Message::Stage stage) noexcept;
  static void end(Message& message, const std::exception_ptr& error) noexcept;
  void finish(Message& message, const std::exception_ptr& error) noexcept;
  void release(Message& message) noexcept;
  void abandon(Message& message, const std::exception_ptr& error) noexcept;

  // Ends of channels.
  void remember(const EndNotice& notice);
  void tell(int peer, const EndNotice& notice);
  void answer_if_ended(int source, std::uint64_t channel);
  void pass_on(int source, const EndNotice& notice) noexcept;
  void ask(Channel& channel, const Message& receive);
  void ask(Channel& channel, std::uint64_t number, int peer);
  void ask_around(Channel& channel, std::uint64_t number);
  void on_end(int source, const Frame& frame, const Payload& payload);
  // Returns whether that is the channel's first loss of a rank that did not leave in good order.
  bool lose_peer(std::uint64_t number, Channel& channel, int peer, const Loss& loss);
  void end_unreachable(std::uint64_t number, Channel& channel, const std::exception_ptr& reason);

  // What nobody has received.
  static UnexpectedList::iterator find_unexpected(Channel& channel, const Message& receive);
  static Message* find_posted(const Channel& channel, int source, std::uint32_t tag);
  void keep(Channel& channel, int source, const Frame& frame, const Payload& payload);
  UnexpectedList::iterator drop(UnexpectedList& list, UnexpectedList::iterator which) noexcept;
  void freed(int source, bool is_offer, std::size_t bytes) noexcept;

  // Frames that come.
  bool on_frame(int source, const Frame& frame, const Payload& payload) override;
  void on_message(int source, const Frame& frame, const Payload& payload);
  void on_offer(int source, const Frame& frame);
  void on_accept(int source, const Frame& frame) noexcept;
  void on_piece(int source, const Frame& frame, const Payload& payload);
  void on_cancel(int source, const Frame& frame);
  void on_report(int source, const Frame& frame) noexcept;
  void on_confirm(int source, const Frame& frame) noexcept;
  void on_credit(int source, const Frame& frame) noexcept;

  // Reads the next piece of a message that is pulled. Returns whether there is one.
  bool pull_piece() noexcept;

  // Frames that go. Those that return a bool say whether the wire has room left.
  bool write(int to, const Frame& frame, const std::byte* payload, std::size_t bytes);
  bool has_eager_credit(const Peer& to, std::size_t bytes) const noexcept;
  void write_to(int index);
  bool write_credit(int index);
  bool write_answers(int index);
  bool write_ends(int index);
  bool write_asks(int index);
  bool write_send(int index);
  bool write_piece(int index);

  Wire& wire_;
  const Limits limits_;
  std::vector<Peer> peers_;
  bool all_partners_ = true;
  std::vector<int> due_;  // peers, each once; has room for all
  std::map<std::uint64_t, Channel> channels_;
  std::map<std::uint64_t, std::uint64_t> removed_;  // channels: the first of a range, the last
  // For those who ask later: how this endpoint's channels ended that failed, the last kEndsKept of them, and what it
  // says of a channel that it has left.
  static constexpr std::size_t kEndsKept = 256;
  std::map<std::uint64_t, EndNotice> failed_;
  std::optional<EndNotice> left_;
  MessageTable open_;
  MessageQueue pulls_;          // receives that are read out of their senders' memory, in turn
  UnexpectedList spare_;        // rows that are free
  std::size_t unfinished_ = 0;  // messages
  std::size_t unwritten_ = 0;   // answers and ends
  std::uint64_t written_ = 0;   // frames
  bool ended_some_ = false;
};

}  // namespace gradwire::messages

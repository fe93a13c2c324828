// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The frames that go, and the order in which they do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/backend/messages/credit_internal.h"
#include "gradwire/backend/messages/limits_internal.h"
#include "gradwire/backend/messages/message_table_internal.h"
#include "gradwire/backend/messages/wire_internal.h"

namespace gradwire::messages {

// What is said of the end of a channel: an end, or a passed_end.
struct EndNotice {
  Frame frame;
  std::shared_ptr<const std::string> payload;
};

// What is to be written to each peer, in order of urgency, and the credit with each. A message waits in one queue at
// most, and leaves it by MessageTable::release(), too. Used by one thread at a time.
class Outbox final {
 public:
  // `wire` and `table` must outlive the outbox.
  Outbox(Wire& wire, const Limits& limits, MessageTable& table);

  // Writes a small message that is in no queue, and returns true; without effect, returns false where an older message
  // waits, or credit or room is missing.
  bool write_at_once(const Message& send);
  // Puts a message that is in no queue among those that are to be written: a send that has not begun; a send that was
  // accepted; a message of whose new stage its peer is to hear (accepting, reporting, confirming or cancelling).
  void add_send(Message& send) noexcept;
  void add_stream(Message& send) noexcept;
  void add_answer(Message& message, Message::Stage stage) noexcept;
  // Throws std::bad_alloc, without effect.
  void tell(int to, const EndNotice& notice);
  void ask(int to, std::uint64_t channel);
  // Whether an end of the channel is to be written to the peer.
  bool tells_of(int to, std::uint64_t channel) const noexcept;
  // Forgets the ends and the questions.
  void drop_notices() noexcept;

  // A small message or an offer of the peer is not kept here any more.
  void free_message(int of, std::size_t bytes) noexcept;
  void free_offer(int of) noexcept;
  // A credit has come.
  void on_credit(int source, const Frame& frame) noexcept;

  // Writes what the wire takes. Returns whether that was anything. Messages that are done with it are released. Throws
  // InternalError of the wire.
  bool write_all();
  // Whether answers or ends are to be written.
  bool has_unwritten() const noexcept;

 private:
  struct Peer {
    // To be written, in this order of urgency; sends and streams in turn.
    MessageQueue answers;
    std::list<EndNotice> ends;
    std::vector<std::uint64_t> asks;  // channels
    MessageQueue own_sends;           // of collectives, not begun: they do not wait for messages of the user's
    MessageQueue sends;               // of the user's, not begun
    MessageQueue streams;             // accepted
    Credit credit;
    bool due = false;  // it is in due_
  };

  // The queue of a send that has not begun.
  static MessageQueue& queue_of(Peer& to, const Message& send) noexcept {
    return is_own(send) ? to.own_sends : to.sends;
  }
  static bool is_own(const Message& send) noexcept { return send.tag >= kFirstReservedTag; }

  Peer& peer(int index) noexcept { return peers_[static_cast<std::size_t>(index)]; }
  const Peer& peer(int index) const noexcept { return peers_[static_cast<std::size_t>(index)]; }
  // Something may be to be written to the peer: what goes is looked for at these only, as there may be thousands.
  void mark_due(int index) noexcept;
  bool has_work(const Peer& to) const noexcept;

  // Those that return a bool say whether the wire has room left.
  bool write(int to, const Frame& frame, const std::byte* payload, std::size_t bytes);
  void write_to(int index);
  bool write_credit(int index);
  bool write_ends(int index);
  bool write_asks(int index);
  bool write_answers(int index);
  bool write_send(int index);
  bool write_piece(int index);

  Wire& wire_;
  const Limits limits_;
  MessageTable& table_;
  std::vector<Peer> peers_;
  std::vector<int> due_;       // peers, each once; has room for all
  std::uint64_t written_ = 0;  // frames
};

}  // namespace gradwire::messages

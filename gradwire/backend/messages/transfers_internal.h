// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What becomes of a message that was offered, once its receive is there, and of a request that is given up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>

#include "gradwire/backend/messages/message_table_internal.h"
#include "gradwire/backend/messages/outbox_internal.h"
#include "gradwire/backend/messages/quicker_way_internal.h"
#include "gradwire/backend/messages/wire_internal.h"

namespace gradwire::messages {

// The stages of messages from their match on. Knows messages by their numbers; numbers that a peer names are looked up
// and checked, as a message may have ended meanwhile. Used by one thread at a time.
class Transfers final {
 public:
  // Reads `pulled_piece` bytes out of a peer's memory at a time. All three must outlive this. `clock`: as QuickerWay's.
  Transfers(Wire& wire, std::size_t pulled_piece, std::function<QuickerWay::TimePoint()> clock, MessageTable& table,
            Outbox& outbox);

  // Accepts an offer (wire_internal.h) of the peer `source` for a receive that is in no queue; `lent` is where its
  // memory can be read, or 0. A receive that is not to have the message, as it is too large, ends with `error`; the
  // peer hears that nobody wants its pieces.
  void accept(Message& receive, int source, std::uint64_t offer, std::uint64_t lent,
              const std::exception_ptr& error) noexcept;
  // Ends the message with `reason` unless it is done.
  void cancel(Message& message, const std::exception_ptr& reason) noexcept;
  // Reads the next piece of a message that is pulled. Returns whether there is one.
  bool pull_piece() noexcept;

  // Frames that come.
  void on_accept(int source, const Frame& frame) noexcept;
  void on_report(int source, const Frame& frame) noexcept;
  void on_confirm(int source, const Frame& frame) noexcept;
  // Returns false, without effect, when the piece has more bytes than are missing.
  bool on_piece(int source, const Frame& frame, const Payload& payload) noexcept;

  // The receive that was matched with the offer; null when there is none.
  Message* find_receive(int source, std::uint64_t offer) const noexcept;

 private:
  // The whole message has come.
  void complete(Message& receive) noexcept;

  Wire& wire_;
  const std::size_t pulled_piece_;
  MessageTable& table_;
  Outbox& outbox_;
  MessageQueue pulls_;  // receives that are read out of their senders' memory, in turn
  QuickerWay way_;      // of messages whose memory can be read
};

}  // namespace gradwire::messages

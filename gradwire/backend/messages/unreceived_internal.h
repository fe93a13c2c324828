// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Messages and offers that came before their receives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>

#include "gradwire/backend/messages/outbox_internal.h"

namespace gradwire::messages {

// A message or an offer that nobody has received.
struct Unexpected {
  int peer = 0;
  std::uint32_t tag = 0;
  std::uint64_t offer = 0;  // the sender's number; 0: a small message
  std::uint64_t lent = 0;   // an offer's: as Message's
  std::size_t bytes = 0;
  std::unique_ptr<std::byte[]> payload;
  std::list<Unexpected>::iterator place;  // in the list that the row is in
};

// A channel's, in the order in which they came.
using UnexpectedList = std::list<Unexpected>;

// Keeps and drops the rows of all channels' lists. What is dropped is owed to its peer as credit at once: so each
// message that counts against a peer is in a list, or is owed. Used by one thread at a time.
class Unreceived final {
 public:
  // Of one peer's, as Limits counts.
  struct Kept {
    std::size_t bytes = 0;
    std::size_t offers = 0;
  };

  // `outbox` must outlive this.
  explicit Unreceived(Outbox& outbox) : outbox_(outbox) {}

  // The first row for the receive; the row of the peer's offer. Null when there is none.
  static Unexpected* find(UnexpectedList& list, const Message& receive) noexcept;
  static Unexpected* find_offer(UnexpectedList& list, int peer, std::uint64_t offer) noexcept;
  static Kept kept(const UnexpectedList& list, int peer) noexcept;

  // Throws std::bad_alloc, without effect.
  void keep(UnexpectedList& list, int source, const Frame& frame, const Payload& payload);
  void drop(UnexpectedList& list, Unexpected& row) noexcept;
  void drop_all(UnexpectedList& list) noexcept;
  void drop_offers(UnexpectedList& list, int peer) noexcept;

 private:
  Outbox& outbox_;
  UnexpectedList spare_;  // rows that are free
};

}  // namespace gradwire::messages

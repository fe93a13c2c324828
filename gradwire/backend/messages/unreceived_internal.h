// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The memory of messages and offers that came before their receives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "gradwire/backend/messages/outbox_internal.h"
#include "gradwire/backend/messages/unexpected_list_internal.h"
#include "gradwire/backend/messages/wire_internal.h"

namespace gradwire::messages {

// Keeps and drops the rows of all channels' lists. What is dropped is owed to its peer as credit at once: so each
// message that counts against a peer is in a list, or is owed. Used by one thread at a time.
class Unreceived final {
 public:
  // Of one peer's, as Limits counts.
  struct Kept {
    std::size_t bytes = 0;
    std::size_t offers = 0;
  };

  // `outbox` must outlive this. Throws std::bad_alloc.
  explicit Unreceived(Outbox& outbox);

  static Kept kept(const UnexpectedList& list, int peer) noexcept;

  // Throws std::bad_alloc, without effect.
  void keep(UnexpectedList& list, int source, const Frame& frame, const Payload& payload);
  void drop(UnexpectedList& list, Unexpected& row) noexcept;
  void drop_all(UnexpectedList& list) noexcept;
  void drop_offers(UnexpectedList& list, int peer) noexcept;

 private:
  Outbox& outbox_;
  std::vector<std::unique_ptr<Unexpected>> spare_;  // rows that are free; has room for all that are kept
};

}  // namespace gradwire::messages

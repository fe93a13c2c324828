// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How an endpoint cuts messages, and how much of a peer's it keeps.
#pragma once

#include <cstddef>

#include "gradwire/backend/backend.h"

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

}  // namespace gradwire::messages

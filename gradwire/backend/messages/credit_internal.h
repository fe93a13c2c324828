// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How much this endpoint and one peer may make each other keep of what nobody has received (Limits).
#pragma once

#include <algorithm>
#include <cstddef>

#include "gradwire/backend/messages/limits_internal.h"

namespace gradwire::messages {

// The limits, which are the same on both sides, are the caller's: there may be thousands of peers.
class Credit final {
 public:
  // Whether the peer has room for a small message of so many bytes, and for an offer.
  bool covers_message(const Limits& limits, std::size_t bytes) const noexcept {
    return bytes <= limits.eager_message && used_bytes_ + bytes + kEagerOverhead <= limits.eager_bytes;
  }
  // `is_own`: of a collective. Those are few, because their ranks are in the collective; so that they pass when the
  // user's offers are at the limit, they have as many places of their own.
  bool covers_offer(const Limits& limits, bool is_own) const noexcept {
    return used_offers_ < (is_own ? 2 * limits.offers : limits.offers);
  }
  // A message or an offer was written.
  void use_message(std::size_t bytes) noexcept { used_bytes_ += bytes + kEagerOverhead; }
  void use_offer() noexcept { ++used_offers_; }
  // The peer has freed so much. Bytes count with the overhead.
  void restore(std::size_t bytes, std::size_t offers) noexcept {
    used_bytes_ -= std::min(used_bytes_, bytes);
    used_offers_ -= std::min(used_offers_, offers);
  }

  // A message or an offer of the peer is not kept here any more.
  void free_message(std::size_t bytes) noexcept { freed_bytes_ += bytes + kEagerOverhead; }
  void free_offer() noexcept { ++freed_offers_; }
  // Whether the peer is to be told. That is when half of a limit was freed: often enough that a peer never waits for
  // it, and seldom.
  bool is_due(const Limits& limits) const noexcept {
    return (freed_bytes_ > 0 && freed_bytes_ >= limits.eager_bytes / 2) ||
           (freed_offers_ > 0 && freed_offers_ >= limits.offers / 2);
  }
  // What was freed and not yet told.
  std::size_t freed_bytes() const noexcept { return freed_bytes_; }
  std::size_t freed_offers() const noexcept { return freed_offers_; }
  void note_told() noexcept { freed_bytes_ = freed_offers_ = 0; }

 private:
  // What the peer keeps of this endpoint's, as far as the peer has said.
  std::size_t used_bytes_ = 0;
  std::size_t used_offers_ = 0;
  std::size_t freed_bytes_ = 0;
  std::size_t freed_offers_ = 0;
};

}  // namespace gradwire::messages

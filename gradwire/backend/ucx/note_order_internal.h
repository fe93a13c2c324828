// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The order of the notes of one peer: UCX may bring a note before those ahead of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "gradwire/backend/ucx/note_internal.h"

namespace gradwire::ucx {

// Gives every note its turn once, by its number, and keeps those that come early. Used by one thread at a time.
class NoteOrder {
 public:
  struct EarlyNote {
    Envelope envelope;
    std::vector<std::byte> payload;
  };

  // Whether the note of that number has had its turn.
  bool is_past(std::uint64_t number) const noexcept { return number < next_; }
  // Returns whether it is the note's turn, which it has had then; else keeps a copy. The note is not past. Throws
  // std::bad_alloc, without effect.
  bool take_turn(const Envelope& envelope, std::span<const std::byte> payload) {
    if (envelope.number == next_) {
      ++next_;
      return true;
    }
    early_.try_emplace(envelope.number, EarlyNote{envelope, {payload.begin(), payload.end()}});
    return false;
  }
  // The note that was kept and whose turn it is; it has had it then.
  std::optional<EarlyNote> take_next() {
    const auto first = early_.begin();
    if (first == early_.end() || first->first != next_) return std::nullopt;
    ++next_;
    std::optional<EarlyNote> note = std::move(first->second);
    early_.erase(first);
    return note;
  }

 private:
  std::uint64_t next_ = 0;  // number
  std::map<std::uint64_t, EarlyNote> early_;
};

}  // namespace gradwire::ucx

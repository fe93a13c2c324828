// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What lies in the memory that the ranks of one channel share.
//
// Every rank has a slot. Ranks meet in numbered steps: a rank arrives at step s by writing s into its arrival line s
// mod 2, and goes on when all others have arrived. A line is written again two steps later, when everybody has left the
// step in between and therefore no longer reads it: that is why two lines suffice and no rank ever waits to leave.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "gradwire/backend/backend.h"
#include "gradwire/backend/fingerprint_internal.h"

namespace gradwire::shared {

// Where a rank's buffer lies: an offset within its part of a segment that all ranks map. Segment 0: in private memory.
struct Location {
  std::uint64_t segment = 0;
  std::uint64_t offset = 0;
};

// One cache line says that a rank arrived, with what, and where its buffer is. (128: processors fetch lines in pairs.)
struct alignas(128) ArrivalLine {
  std::atomic<std::uint64_t> step;
  Fingerprint fingerprint;
  Location location;
};

// One buffer of several, for the operations that take a list of them.
struct PartEntry {
  std::uint64_t offset;    // as in Location
  std::uint64_t bytes;     // what this rank offers to rank i
  std::uint64_t expected;  // what this rank expects from rank i
};

enum class RankState : std::uint32_t { active = 0, left = 1, failed = 2 };
enum class FailureKind : std::uint32_t { peer, timeout, mismatch, aborted, other };

// Why a rank is at its end; written once, before the state.
struct FailureNote {
  std::atomic<RankState> state;
  FailureKind kind;
  std::uint64_t culprits;  // a bit a rank
  std::uint64_t during;    // the entry step of the call under way then, or 0
  char reason[1024];
};

struct alignas(4096) RankSlot {
  ArrivalLine lines[2];
  alignas(128) std::atomic<std::uint32_t> sleepers;  // threads that sleep, or are about to, until this rank arrives
  alignas(128) FailureNote failure;
  // The entry step of the last call that this rank left by an error: it touches nobody's buffer for that call any more.
  alignas(128) std::atomic<std::uint64_t> gave_up;
  alignas(128) PartEntry parts[2][kMaxWorldSize];  // by the parity of the step, as the lines
};
static_assert(offsetof(ArrivalLine, location) + sizeof(Location) <= 64, "arrival must fit one cache line");

// How a rank's part of a channel's memory is laid out: slot, then two staging areas for what it offers, then two for
// what it reduced.
struct ChannelLayout {
  explicit ChannelLayout(int size) noexcept;

  std::size_t window;  // bytes of one staging area, a multiple of 4096
  std::size_t stride;  // bytes of one rank's part

  std::size_t input_offset(unsigned parity) const noexcept { return sizeof(RankSlot) + parity * window; }
  std::size_t result_offset(unsigned parity) const noexcept { return sizeof(RankSlot) + (2 + parity) * window; }
};

}  // namespace gradwire::shared

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What lies in the memory that the ranks of one channel share: for every rank a slot, then its staging areas.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "gradwire/backend/backend.h"
#include "gradwire/backend/shared/host_machine_internal.h"
#include "gradwire/backend/shared/max_ranks.h"
#include "gradwire/backend/shared/steps_internal.h"

namespace gradwire::shared {

// One buffer of several, for the operations that take a list of them.
struct PartEntry {
  std::uint64_t offset;    // as in Location
  std::uint64_t bytes;     // what this rank offers to rank i
  std::uint64_t expected;  // what this rank expects from rank i
};

struct alignas(4096) RankSlot {
  StepsSlot<HostMachine> steps;
  // How many bytes of each part this rank has staged of a window, and of which one (Buffers::staged_by()).
  alignas(128) std::atomic<std::uint64_t> staged;
  alignas(128) PartEntry parts[2][kMaxRanksOfHost];  // by the parity of the step, as the lines
};
static_assert(offsetof(RankSlot, steps) == 0);
static_assert(sizeof(std::atomic<std::uint64_t>) + sizeof(EntryCard) <= 64, "arrival must fit one cache line");

// How a rank's part of a channel's memory is laid out: slot, then two staging areas for what it offers, then two for
// what it reduced.
struct ChannelLayout {
  static constexpr std::size_t kLargestWindow = std::size_t{256} << 10;

  explicit ChannelLayout(int size) noexcept;

  std::size_t window;  // bytes of one staging area, a multiple of 4096
  std::size_t stride;  // bytes of one rank's part

  std::size_t input_offset(unsigned parity) const noexcept { return sizeof(RankSlot) + parity * window; }
  std::size_t result_offset(unsigned parity) const noexcept { return sizeof(RankSlot) + (2 + parity) * window; }
};

}  // namespace gradwire::shared

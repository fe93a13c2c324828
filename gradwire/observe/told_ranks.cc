// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/observe/told_ranks.h"

#include <atomic>

#include "gradwire/observe/flight_memory_internal.h"

namespace gradwire::observe {
namespace {

constexpr std::uint64_t kNone = ~std::uint64_t{0};

std::atomic<std::uint64_t> told{kNone};

std::uint64_t world_of(std::uint64_t ranks) noexcept { return ranks == kNone ? 0 : ranks & 0xffffffffU; }

}  // namespace

void tell_ranks(int rank, int world) noexcept {
  if (rank < 0 || world < 1) return;
  const std::uint64_t ranks = static_cast<std::uint64_t>(rank) << 32 | static_cast<std::uint64_t>(world);
  std::uint64_t before = told.load(std::memory_order_relaxed);
  while (world_of(before) < world_of(ranks)) {
    if (told.compare_exchange_weak(before, ranks, std::memory_order_relaxed)) return;
  }
}

std::uint64_t ranks_that_were_told() noexcept { return told.load(std::memory_order_relaxed); }

}  // namespace gradwire::observe

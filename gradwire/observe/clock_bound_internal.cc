// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/observe/clock_bound_internal.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

namespace gradwire::observe {
namespace {

// Processes of one host read wall and monotonic clock one after the other.
constexpr std::int64_t kSameClock = 1'000'000;
constexpr std::int64_t kWallClocksDiffer = 60'000'000'000;

// Whether such a call ends well on no rank before all ranks have made it.
bool waits_for_all(const CallRow& call) noexcept {
  switch (call.kind) {
    case CallKind::barrier:
    case CallKind::monitored_barrier:
    case CallKind::dup:
    case CallKind::split:
    case CallKind::allocate:
      return true;
    case CallKind::all_reduce:
    case CallKind::all_gather:
    case CallKind::all_gather_into_tensor:
    case CallKind::reduce_scatter_tensor:
      return call.count > 0;
    default:
      return false;
  }
}

}  // namespace

bool have_one_clock(const RankTable& one, const RankTable& other) noexcept {
  return std::abs(one.wall_offset - other.wall_offset) < kSameClock;
}

std::int64_t least_shift(const ClockOfRank& own, const ClockOfRank& theirs) {
  if (have_one_clock(own.rank, theirs.rank)) return 0;
  const std::int64_t by_wall = theirs.rank.wall_offset - own.rank.wall_offset;
  constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::min();
  std::int64_t least = kNone;
  for (const auto& [number, call] : theirs.calls) {
    const auto found = own.calls.find(number);
    if (found == own.calls.end()) continue;
    const CallRow& mine = *found->second;
    const bool both_went_well = call->outcome == Outcome::good && mine.outcome == Outcome::good;
    if (both_went_well && waits_for_all(*call) && waits_for_all(mine))
      least = std::max(least, mine.called - call->ended);
  }
  return least == kNone ? by_wall - kWallClocksDiffer : least;
}

}  // namespace gradwire::observe

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The clocks of two ranks, which may be on two hosts.
#pragma once

#include <cstdint>
#include <map>

#include "gradwire/observe/flight_table.h"

namespace gradwire::observe {

// The collectives of a rank in one group, by their number.
using CallsByNumber = std::map<std::uint64_t, const CallRow*>;

// A rank and what it called in a group.
struct ClockOfRank {
  const RankTable& rank;
  const CallsByNumber& calls;
};

// Whether the ranks are on one host, as their clocks show.
bool have_one_clock(const RankTable& one, const RankTable& other) noexcept;

// At a time t of the clock of `theirs`, the clock of `own` shows t plus this, or a later time; in nanoseconds.
// The calls of both ranks tell: where both ended well, neither ended before the other one was made. Without such calls
// the wall clocks tell, which differ by no more than a minute.
std::int64_t least_shift(const ClockOfRank& own, const ClockOfRank& theirs);

}  // namespace gradwire::observe

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Which looks at a rank tell how fast the rank is now. Without a clock of its own.
#pragma once

#include <deque>
#include <optional>

#include "gradwire/observe/run_sums.h"
#include "launch/live_ranks.h"
#include "launch/live_source.h"

namespace gradwire::launch {

// Of one rank. For one thread.
class RecentLooks final {
 public:
  using Time = Deadline::Clock::time_point;

  // Takes the newest look. A look at another process in the rank's place makes all earlier ones forgotten.
  void add(const LiveLook& look);
  // How the rank gets on at `now`: over the last 5 s in which steps ended, and over the last step where one step takes
  // longer. LiveRank::any_steps is false where no step has ended for 5 s and for three times as long as a step takes.
  LiveRank rank(int number, Time now) const;

 private:
  std::deque<LiveLook> changes_;         // the looks that were the first with their number of steps; the newest last
  std::optional<observe::RunSums> now_;  // of the newest look
};

}  // namespace gradwire::launch

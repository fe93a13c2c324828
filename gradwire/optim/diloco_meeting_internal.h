// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What the workers of DiLoCo do when their number has changed: a function of what they tell each other.
#pragma once

#include <cstdint>
#include <vector>

namespace gradwire::internal {

// An exchange of a fragment begins, its average arrives, and the outer step ends the exchange.
enum class DilocoPhase : std::int64_t { idle, begun, arrived };

// How far one worker is with one fragment.
struct FragmentStanding {
  std::int64_t exchanges = 0;             // that have ended
  std::int64_t begun_at = 0;              // the number of steps at which the last exchange began
  DilocoPhase phase = DilocoPhase::idle;  // of that exchange
  bool contributes = true;                // this worker has a difference in that exchange
  std::int64_t hash = 0;                  // of the outer parameters
};

// How far one worker is.
struct WorkerStanding {
  bool holds = false;  // the state of the job
  std::int64_t steps = 0;
  std::vector<FragmentStanding> fragments;
};

// What to do, the same on all workers.
struct DilocoPlan {
  struct Fragment {
    // The exchange that began at `begun_at` steps is done again: nobody has ended it, and a worker that got its average
    // gives the average up.
    bool again = false;
    std::int64_t begun_at = 0;
    // The average over all ranks times this is the average over those that have a difference. 1 where all have one.
    double share = 1;
  };
  int donor = -1;              // -1: nobody holds the state
  std::vector<int> receivers;  // the ranks that take the donor's state, in ascending order
  std::vector<Fragment> fragments;

  bool receives(int rank) const;
};

// `workers`: by rank, with the same number of fragments. `fresh`: where nobody holds the state, rank 0 does.
//
// An exchange counts on a worker when all have confirmed that they have its average. So when one of those that are left
// has no average, nobody has ended the exchange; when all have, the exchange counts. Throws MismatchError when two
// workers that ended the same exchanges of a fragment hold other outer parameters.
DilocoPlan plan_meeting(const std::vector<WorkerStanding>& workers, bool fresh);

}  // namespace gradwire::internal

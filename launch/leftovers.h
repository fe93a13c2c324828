// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The processes that the ranks of a job leave behind.
#pragma once

#include <sys/types.h>

#include <functional>
#include <vector>

#include "gradwire/base/deadline.h"
#include "launch/descendants.h"

namespace gradwire::launch {

// Processes that outlive their rank become children of this process. Reaps them while the ranks run, and ends them when
// the ranks have ended: they have a short time to exit by themselves (helpers that clean up after a process do so),
// then get SIGKILL. Times are given by the caller. For one thread.
class Leftovers final {
 public:
  using Time = Deadline::Clock::time_point;

  // Processes that are children of this one already do not count. Throws LaunchError.
  Leftovers() = default;

  // Reaps the processes that have ended, but not those that somebody else reaps, for which `is_other` is true.
  static void reap(const std::function<bool(pid_t)>& is_other);

  // The ranks have ended. `patient`: processes get the time to exit by themselves.
  void begin(bool patient, Time now);
  // After begin(): kills whoever is left when the time to exit is over, and returns whether to go on: wait until a
  // child ends or for next(), call reap() and then this again. Throws std::bad_alloc.
  bool clear(Time now);
  // How long to wait at most.
  Milliseconds next(Time now) const;
  // The processes that SIGKILL did not end in time.
  const std::vector<pid_t>& unkillable() const noexcept { return unkillable_; }

 private:
  const Descendants descendants_;
  Time patience_{};       // until then, processes may exit by themselves
  Time keepers_until_{};  // the same of keepers (keeper.h)
  Time give_up_{};
  std::vector<pid_t> unkillable_;
};

}  // namespace gradwire::launch

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// When a supervisor asks the flight recorders of its ranks, and what for.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "gradwire/base/deadline.h"
#include "launch/flight_watch.h"
#include "launch/rank_set.h"
#include "launch/report.h"

namespace gradwire::launch {

// Does nothing for a job without flight recorders. For one thread.
class StallChecks final {
 public:
  // `flight` may be null. Both outlive the object.
  StallChecks(FlightWatch* flight, const RankSet& ranks) : flight_(flight), ranks_(ranks) {}

  // When check() is due; never without --stall.
  Deadline next() const { return flight_ == nullptr ? Deadline::never() : flight_->next_check(); }
  // Once the check is due: returns what to tell of a job that stands still; empty where there is nothing to tell.
  std::string check();
  // The job is about to end by a failure: looks at the processes for the diagnosis.
  void before_end();
  // Somebody interrupts the job, and the ranks have not got the signal yet.
  void before_interruption();
  // The job ran too long: puts what it waits for into `outcome`.
  void diagnose_timeout(JobOutcome& outcome);
  // The job has ended: puts the cause into `outcome` when the job failed by itself, and what the job waited for when it
  // stood still before it was interrupted. `last_lines(rank)` returns the last lines of the rank's stderr.
  void diagnose_end(JobOutcome& outcome, const std::function<std::vector<std::string>(int)>& last_lines);

 private:
  FlightWatch* const flight_;
  const RankSet& ranks_;
};

}  // namespace gradwire::launch

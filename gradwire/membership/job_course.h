// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How an elastic job goes, as far as its events tell: whether it comes further, and how it has ended.
#pragma once

#include <cstdint>
#include <set>

#include "gradwire/membership/records.h"

namespace gradwire::membership {

// Not thread-safe.
class JobCourse {
 public:
  // Takes the next event of the job's log.
  void add(const Event& event);

  // The largest step that the job is known to have come to: one with which an epoch has begun, or that an epoch has
  // reached since (Reached). -1 before the first. A job comes further when it grows.
  std::int64_t furthest_step() const noexcept { return furthest_step_; }
  // How many members that had begun a step of the job have died since the job last came further.
  int deaths_in_a_row() const noexcept { return deaths_in_a_row_; }
  // Whether a member has told that the last step was counted, or that nobody holds the state of the job.
  bool has_finished() const noexcept { return has_finished_; }
  bool has_lost_state() const noexcept { return has_lost_state_; }

 private:
  void come_to(std::int64_t step);

  std::int64_t furthest_step_ = -1;
  int deaths_in_a_row_ = 0;
  std::set<std::int64_t> begun_;  // members that have begun a step, and have neither left nor died
  bool has_finished_ = false;
  bool has_lost_state_ = false;
};

}  // namespace gradwire::membership

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How an elastic job goes, as far as its events tell: whether it comes further, and how it has ended.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "gradwire/membership/records.h"

namespace gradwire::membership {

// Not thread-safe.
class JobCourse {
 public:
  // Takes the next event of the job's log, and the event's number.
  void add(std::int64_t number, const Event& event);

  // The largest step that the job is known to have come to: one with which an epoch has begun, or that an epoch has
  // reached since (Reached). -1 before the first. A job comes further when it grows.
  std::int64_t furthest_step() const noexcept { return furthest_step_; }
  // How many members that had begun a step of the job have died since the job last came further. Those that broke an
  // epoch died at the step with which the next one begins. Members that were lost with one host (Died::host) count
  // once.
  int deaths_in_a_row() const noexcept { return row_.count(); }
  // The last epoch that is known to have begun, and the one in which the first of these deaths was, or is to be. Deaths
  // of earlier epochs are none of the row.
  std::int64_t epoch() const noexcept { return epoch_; }
  std::int64_t row_epoch() const noexcept { return row_epoch_; }
  // Whether a member has told that the last step was counted, or that nobody holds the state of the job.
  bool has_finished() const noexcept { return has_finished_; }
  bool has_lost_state() const noexcept { return has_lost_state_; }
  // Whether the process took part in the last step. `host`: Joined::host; `process`: its number there. False before
  // the job has finished.
  bool has_finished_with(const std::string& host, int process) const;

 private:
  using Process = std::pair<std::string, int>;  // the host, and the number there
  void finish();
  struct Deaths {
    int alone = 0;
    std::set<std::string> hosts = {};  // with which members were lost
    int count() const noexcept { return alone + static_cast<int>(hosts.size()); }
    void add(const Died& died);
  };
  // `deaths`: those of `epoch` until now.
  void come_to(std::int64_t step, const Deaths& deaths, std::int64_t epoch);

  std::int64_t furthest_step_ = -1;
  std::int64_t epoch_ = 0;
  Deaths of_epoch_;  // since it began
  std::int64_t row_epoch_ = 0;
  Deaths row_;
  std::set<std::int64_t> begun_;               // members that have begun a step, and have neither left nor died
  std::map<std::int64_t, Process> processes_;  // of members that have neither left nor died
  std::set<Process> finishers_;                // that took part in the last step
  bool has_finished_ = false;
  bool has_lost_state_ = false;
};

}  // namespace gradwire::membership

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// When a supervisor asks the flight recorders of its ranks, and what for.
#pragma once

#include <poll.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/base/deadline.h"
#include "launch/flight_watch.h"
#include "launch/rank_set.h"
#include "launch/report.h"
#include "launch/source_lines.h"

namespace gradwire::launch {

// Finds what is to be told, then the source lines for it, which may take seconds: no method waits for them, but for a
// tenth of a second where a program that looks them up is ended. Does
// nothing for a job without flight recorders. For one thread.
class StallChecks final {
 public:
  // `flight` may be null. Both outlive the object.
  StallChecks(FlightWatch* flight, const RankSet& ranks) : flight_(flight), ranks_(ranks) {}

  // When check() is due; never without --stall.
  Deadline next() const;
  // Once the check is due: begins what is to be told of a job that stands still, and returns whom to kill, or that
  // nobody is killed (--replace-stalled). Nothing is begun before take_text() has brought what was begun to be told.
  std::optional<HangAnswer> check();
  // How long a rank has waited in a call while no call began or ended, as the last check() has found it; nothing where
  // that is less than --stall. Time in which the ranks were stopped does not count, nor what was before.
  std::optional<std::chrono::nanoseconds> hangs() const noexcept { return hangs_; }
  // The ranks were stopped, or continued: nobody is killed while they are stopped, nor for that time.
  void ranks_were_stopped() noexcept { are_stopped_ = true; }
  void ranks_were_continued() noexcept;
  // The job is about to end by a failure: looks at the processes for the diagnosis.
  void before_end();
  // How long after the first look at the processes a second one tells which of them compute.
  static constexpr Milliseconds kBetweenLooks{100};
  // Somebody interrupts the job, and the ranks have not got the signal yet: remembers what it waits for, if it waits
  // for something. Returns whether something is remembered; then a second call after kBetweenLooks shows more, if the
  // ranks have not got the signal by then.
  bool before_interruption();
  // The job ran too long: the same.
  bool at_timeout();
  // The job has ended, and no lookup is under way: begins what is to be told of the cause when the job failed by
  // itself, and of what it waited for when it ran too long or stood still before it was interrupted. `last_lines(rank)`
  // returns the last lines of the rank's stderr.
  void diagnose_end(const JobOutcome& outcome, const std::function<std::vector<std::string>(int)>& last_lines);

  // While lines are looked up: poll lookup_fd() for reading, -1 else, and call look_up() when it is readable or
  // lookup_end() has passed.
  bool is_looking_up() const { return told_ && !told_->lines.has_ended(); }
  int lookup_fd() const { return told_ ? told_->lines.fd() : -1; }
  Deadline lookup_end() const { return is_looking_up() ? told_->lines.deadline() : Deadline::never(); }
  void look_up();
  // What was begun to be told, with the lines that were found until now; empty where there is nothing to tell. Ends the
  // lookup.
  std::string take_text();
  // Ends the lookup, and tells nothing.
  void forget() noexcept { told_.reset(); }

 private:
  // What is being told.
  struct Told {
    Told(FlightRecords all, Deadline deadline) : records(std::move(all)), lines(std::move(records.tables), deadline) {}
    FlightRecords records;
    SourceLines lines;  // has the tables of `records`
  };
  void begin(std::optional<FlightRecords> records);

  FlightWatch* const flight_;
  const RankSet& ranks_;
  std::optional<FlightRecords> remembered_;
  std::optional<Told> told_;
  std::optional<std::chrono::nanoseconds> hangs_;
  std::chrono::steady_clock::time_point continued_{};  // after the ranks were stopped
  bool are_stopped_ = false;
};

}  // namespace gradwire::launch

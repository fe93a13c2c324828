// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Follows what the ranks of this host record: notices that a job stands still, and says which rank is the cause when a
// job stands still or fails.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gradwire/base/deadline.h"
#include "gradwire/observe/diagnosis.h"
#include "launch/flight_files.h"
#include "launch/flight_report.h"
#include "launch/options.h"
#include "launch/process_look.h"
#include "launch/report.h"

namespace gradwire::launch {

// Of one attempt. Ranks are numbered from 0 on this host. The records that the functions return are without source
// lines; nothing is returned where there is nothing to say.
class FlightWatch {
 public:
  // `options` outlives the object. `world` is the number of ranks of the job.
  FlightWatch(const Options& options, int first_rank, int world);

  // The values of GRADWIRE_FLIGHT_RECORDER for the ranks, as JobVariables takes them.
  std::vector<std::string> recorders() const;

  // When check_stall() is to be called next; never without --stall.
  Deadline next_check() const noexcept { return next_check_; }
  // The job stands still: no call of any rank has begun or ended for --stall, and a rank waits in a call. Each
  // standstill is found once. Where the job has ranks on other hosts, their records may show that they wait for a rank
  // of this host: --flight-dir gets the records of this host's ranks also when none of them waits. `pids` holds the
  // process of each rank; -1: it has ended.
  std::optional<FlightRecords> check_stall(const std::vector<int>& pids);

  // Looks at the processes of the ranks that run, for a later at_end(). The second look tells how busy they were.
  void look(const std::vector<int>& pids);
  // What the job, which ran too long, waits for.
  std::optional<FlightRecords> at_timeout(const std::vector<int>& pids);
  // Somebody interrupts the job: what it waits for, if it stands still and check_stall() has not found that.
  std::optional<FlightRecords> at_interruption(const std::vector<int>& pids);
  // Why the job failed. `last_lines(rank)` returns the last lines of the rank's stderr.
  FlightRecords at_end(const JobOutcome& outcome, const std::function<std::vector<std::string>(int)>& last_lines) const;
  // No rank of this host failed. Where the job has ranks on other hosts, which may fail for want of these, --flight-dir
  // gets the records.
  std::optional<FlightRecords> at_good_end(const JobOutcome& outcome) const;

  // As flight_report.h, for this job: writes the records where --flight-dir asks for that, and returns what to tell.
  std::string tell(const FlightRecords& records) const;

 private:
  // No call has begun or ended for the bound of the occasion.
  struct Standstill {
    std::vector<observe::RankTable> tables;
    observe::Occasion occasion;
    std::int64_t event = 0;  // when the last call began or ended
  };
  struct Looks {
    std::optional<ProcessLook> before;
    std::optional<ProcessLook> now;
  };

  std::vector<observe::RankTable> tables() const;
  // Of the processes of an elastic job that were replaced.
  std::vector<observe::RankTable> earlier() const;
  std::vector<observe::RankTable> tables_at_end(const JobOutcome& outcome,
                                                const std::function<std::vector<std::string>(int)>& last_lines) const;
  // With what is written besides.
  FlightRecords records(std::vector<observe::RankTable> tables, const observe::Occasion& occasion) const;
  // Looks at the ranks; nothing where the job goes on.
  std::optional<Standstill> find_standstill(const std::vector<int>& pids, std::chrono::milliseconds bound);
  // "gradwire-run: the job stands still: no call has begun or ended for 5.1 s". `what`: the words up to "begun".
  FlightRecords with_headline(std::string_view what, Standstill at) const;

  const Options& options_;
  const int first_rank_;
  const int world_;
  const long kills_before_;
  FlightFiles files_;
  std::vector<Looks> looks_;
  Deadline next_check_ = Deadline::never();
  bool was_away_ = false;        // the look before came late
  std::int64_t told_event_ = 0;  // the last event before the standstill that was found
};

}  // namespace gradwire::launch

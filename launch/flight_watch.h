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
#include <utility>
#include <vector>

#include "gradwire/base/deadline.h"
#include "gradwire/observe/diagnosis.h"
#include "launch/flight_files.h"
#include "launch/flight_report.h"
#include "launch/hang_watch.h"
#include "launch/options.h"
#include "launch/present_epoch.h"
#include "launch/process_look.h"
#include "launch/rank_environment.h"
#include "launch/rank_process.h"
#include "launch/report.h"

namespace gradwire::launch {

// Of one attempt. Ranks are numbered from 0 on this host. The records that the functions return are without source
// lines; nothing is returned where there is nothing to say.
class FlightWatch {
 public:
  // `options` outlives the object. Of `job`, the numbers of the ranks and the id of the run count. `epochs`: of an
  // elastic job; null for any other job.
  FlightWatch(const Options& options, const JobVariables& job, EpochLookup epochs = nullptr);

  // The values of GRADWIRE_FLIGHT_RECORDER for the ranks, as JobVariables takes them.
  std::vector<std::string> recorders() const;

  // When check_stall() is to be called next; never without --stall.
  Deadline next_check() const noexcept { return next_check_; }
  // What a look at a job has shown.
  struct StallFinding {
    // The job stands still: no call of any rank has begun or ended for --stall, and a rank waits in a call. Each
    // standstill is found once. Where the job has ranks on other hosts, their records may show that they wait for a
    // rank of this host: --flight-dir gets the records of this host's ranks also when none of them waits.
    std::optional<FlightRecords> records;
    std::optional<HangAnswer> answer;  // with --replace-stalled
    // How long a rank has waited in a call while no call began or ended, where that is --stall or more. Also where that
    // was found before.
    std::optional<std::chrono::nanoseconds> hangs;
  };
  // Looks whether the job stands still. `ranks` holds the process of each rank. `tells`: whether records may be found.
  StallFinding check_stall(const std::vector<RunningRank>& ranks, bool tells);
  // Whether --replace-stalled is given.
  bool may_kill() const noexcept { return hangs_.has_value(); }
  // The ranks have not run for a while because somebody wanted that: nobody is killed for it.
  void forgive() noexcept;

  // Looks at the processes of the ranks that run, for a later at_end(). The second look tells how busy they were.
  void look(const std::vector<RunningRank>& ranks);
  // What the job, which ran too long, waits for. Looks at the processes, as at_interruption() does.
  std::optional<FlightRecords> at_timeout(const std::vector<RunningRank>& ranks);
  // Somebody interrupts the job: what it waits for, if it stands still and check_stall() has not found that.
  std::optional<FlightRecords> at_interruption(const std::vector<RunningRank>& ranks);
  // Why the job failed. `ranks` are the last processes; `last_lines(rank)` returns the last lines of the rank's stderr.
  FlightRecords at_end(const JobOutcome& outcome, const std::vector<RunningRank>& ranks,
                       const std::function<std::vector<std::string>(int)>& last_lines) const;
  // No rank of this host failed. Where the job has ranks on other hosts, which may fail for want of these, --flight-dir
  // gets the records.
  std::optional<FlightRecords> at_good_end(const JobOutcome& outcome, const std::vector<RunningRank>& ranks) const;

  // What the calls of a rank tell of its failure. `rank` counts from this host's first.
  JobOutcome::Calls calls_of(int rank) const;

  // As flight_report.h, for this job: writes the records where --flight-dir asks for that, and returns what to tell.
  std::string tell(const FlightRecords& records) const;

 private:
  // The calls of the ranks at one moment.
  struct Sight {
    std::vector<observe::RankTable> tables;
    observe::Occasion occasion;
    std::int64_t event = 0;                  // when the last call began or ended; 0: there was none
    std::optional<PresentEpoch> epoch = {};  // of an elastic job that stands still
    std::vector<bool> is_replaced = {};  // of an elastic job, by rank: a process that was replaced recorded the table
    std::int64_t time() const noexcept { return occasion.now - event; }
    // No call has begun or ended for the bound of the occasion.
    bool stands_still() const noexcept { return event != 0 && time() >= occasion.bound; }
    observe::Diagnosis diagnose() const;
  };
  struct Looks {
    std::optional<ProcessLook> before;
    std::optional<ProcessLook> now;
  };

  std::vector<observe::RankTable> tables() const;
  // Of the processes of an elastic job that were replaced.
  std::vector<observe::RankTable> earlier() const;
  FlightRecords records_at_end(const JobOutcome& outcome, const std::vector<RunningRank>& ranks,
                               const std::function<std::vector<std::string>(int)>& last_lines) const;
  // With what is written besides. The tables of `is_replaced` are set aside: the present processes of these ranks have
  // recorded nothing.
  FlightRecords records(std::vector<observe::RankTable> tables, const std::vector<bool>& is_replaced,
                        const observe::Occasion& occasion) const;
  // As EpochLookup. Asks for an epoch until it is known, and never again.
  std::optional<EpochMembers> members_of(std::int64_t epoch);
  Sight see(const std::vector<RunningRank>& ranks, std::chrono::milliseconds bound);
  // Of check_stall().
  std::optional<HangAnswer> judge(const Sight& at, const std::vector<RunningRank>& ranks);
  // "gradwire-run: the job stands still: no call has begun or ended for 5.1 s". `what`: the words up to "begun".
  FlightRecords with_headline(std::string_view what, Sight at) const;

  const Options& options_;
  const int first_rank_;
  const int world_;
  const std::string run_id_;
  const long kills_before_;
  FlightFiles files_;
  std::vector<Looks> looks_;
  Deadline next_check_ = Deadline::never();
  bool was_away_ = false;        // the look before came late
  std::int64_t told_event_ = 0;  // the last event before the standstill that was found
  const EpochLookup epochs_;
  std::pair<std::int64_t, EpochMembers> known_epoch_{};  // that was looked up last, by number
  std::optional<HangWatch> hangs_;
};

}  // namespace gradwire::launch

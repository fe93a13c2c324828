// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The outcome of a job, and its report for the user.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launch/rank_process.h"

namespace gradwire::launch {

// The death of a process whose place another one took.
struct EarlierDeath {
  int rank = 0;  // counts from this host's first
  ProcessEnd end;
  std::chrono::milliseconds after{};    // from the start of the job
  std::vector<std::string> last_lines;  // of its stderr
  std::string error_file;               // the file of that stderr, with --log-dir
};

struct JobOutcome {
  int first_rank = 0;                           // the number of this host's first rank; what follows counts from it
  std::vector<std::optional<ProcessEnd>> ends;  // by rank; empty for a rank that even SIGKILL did not end in time
  std::optional<int> first_bad;                 // the first rank that failed, by its exit code or by a signal
  std::chrono::milliseconds first_bad_after{};  // from the start of the job
  std::chrono::system_clock::time_point first_bad_at{};
  // Of an elastic job: the first of the deaths between which the job did not come further, of which that of `first_bad`
  // is the last. It is the likely cause.
  std::optional<EarlierDeath> earlier;
  // What its calls tell of the first rank that failed.
  enum class Calls {
    unknown,        // nothing is recorded
    good,           // none had failed
    failed,         // the last that failed had an error of the rank's own, or ran out of time
    of_other_rank,  // the last that failed had failed because of another rank (a PeerError)
  } first_bad_calls = Calls::unknown;
  std::vector<int> killed;              // ranks that still ran after the grace and got SIGKILL
  std::vector<int> asked;               // ranks that still ran when they were asked to end
  std::vector<int> late;                // ranks that still ran when --timeout passed
  bool late_hosts = false;              // --timeout passed when only other hosts of an elastic job still ran
  int interrupted_by = 0;               // the signal that told the launcher to end the job; 0 for none
  bool launcher_was_killed = false;     // that signal was SIGKILL, and ended the launcher's front process
  bool interrupted_first = false;       // the interruption came before any rank had failed
  bool stopped_first = false;           // another host's failure stopped the ranks before any had failed
  bool launch_failed = false;           // the coordinator of an elastic job could not be kept running
  std::vector<pid_t> unkillable;        // processes that SIGKILL did not end in time
  std::vector<std::string> last_lines;  // of the stderr of the first rank that failed
  std::string error_file;               // the file of that stderr, with --log-dir
  std::string diagnosis;                // what the ranks' last calls show: lines of the report

  // Whether something that ends the job has happened on this host: a rank failed, the job ran too long, or it was
  // interrupted.
  bool has_cause() const noexcept { return first_bad.has_value() || !late.empty() || interrupted_by != 0; }
  // Whether report() quotes `last_lines`.
  bool quotes_last_lines() const noexcept;

  // Whether the ranks were ended because the coordinator could not be kept running, and none had failed before.
  bool ended_with_coordinator() const noexcept;

  // The launcher's exit code.
  int exit_code() const noexcept;
};

// Returns several lines. Each line begins with "gradwire-run: ", quoted lines with "  | ". Returns an empty text for a
// job that succeeded. A pure function.
std::string report(const JobOutcome& outcome, std::chrono::milliseconds timeout);

// Lines that tell of the errors with which several ranks ended, each error once with the ranks: what their stderr ends
// with is the same but for the rank's own number. A rank that the launcher asked to end counts where it had told of an
// exception. An error that report() quotes, of the rank that died first, is not quoted again. `last_lines(rank)`
// returns the last lines of the rank's stderr; ranks are numbered from 0 on this host.
std::string shared_errors(const JobOutcome& outcome, const std::function<std::vector<std::string>(int)>& last_lines);

}  // namespace gradwire::launch

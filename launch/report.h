// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What became of a job, and how that is told.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "launch/rank_process.h"

namespace gradwire::launch {

struct JobOutcome {
  int first_rank = 0;                           // the number of this host's first rank; what follows counts from it
  std::vector<std::optional<ProcessEnd>> ends;  // by rank; nothing for a rank that even SIGKILL did not end in time
  std::optional<int> first_bad;                 // the rank that was the first to end badly, by itself or by a signal
  std::chrono::milliseconds first_bad_after{};  // from the start of the job
  std::vector<int> killed;                      // ranks that were still there after the grace and got SIGKILL
  std::vector<int> late;                        // ranks that were still there when --timeout passed
  int interrupted_by = 0;                       // the signal that told the launcher to end the job; 0 for none
  bool interrupted_first = false;               // before any rank had ended badly
  bool stopped_first = false;                   // another host's failure stopped the ranks, before one had ended badly
  std::vector<pid_t> unkillable;                // processes that SIGKILL did not end in time
  std::vector<std::string> last_lines;          // of the first bad rank's stderr
  std::string error_file;                       // where the whole of it is, with --log-dir

  // The launcher's exit code.
  int exit_code() const noexcept;
};

// Several lines, each beginning "gradwire-run: ", the quoted ones "  | "; empty for a job that ended well. A pure
// function.
std::string report(const JobOutcome& outcome, std::chrono::milliseconds timeout);

}  // namespace gradwire::launch

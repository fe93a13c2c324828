// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The processes of all ranks of one attempt on this host.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "launch/death_watch.h"
#include "launch/options.h"
#include "launch/output.h"
#include "launch/rank_process.h"
#include "launch/signals.h"

namespace gradwire::launch {

// One rank to start.
struct RankCommand {
  std::vector<std::string> command;
  std::vector<std::string> environment;
  int stdin_fd = -1;  // the caller keeps it; -1: /dev/null
  // The other end of stdin_fd, where the command reads signals as lines (signal_lines.h); the caller keeps it. -1: it
  // gets signals from the kernel.
  int signal_fd = -1;
};

// Ranks are numbered from 0 on this host. For one thread.
class RankSet final {
 public:
  // The arguments outlive the object. `first_rank`: the number of this host's rank 0 in the job. Throws LaunchError.
  RankSet(const Options& options, const SignalQueue& signals, int first_rank, Output& output, DeathWatch& deaths);
  ~RankSet();  // kill()
  RankSet(const RankSet&) = delete;
  RankSet& operator=(const RankSet&) = delete;

  // Starts all ranks; `commands` outlives the object. Throws LaunchError.
  void start(const std::vector<RankCommand>& commands);
  // Starts a new process of a rank that has ended. Throws LaunchError.
  void start_again(int rank);
  // Reaps a rank that has ended, and returns how it ended.
  ProcessEnd reap_rank(int rank) noexcept;
  // Kills and reaps the ranks that run. A process that waits for a broken disk or device does not end: after 2 s it is
  // left to the kernel.
  void kill() noexcept;
  // Sends the signal to each rank that runs, and to its process group.
  void signal(int signal) noexcept;
  // The same for one rank.
  void signal(int rank, int signal) noexcept;
  // Passes on a signal that the launcher has got: through RankCommand::signal_fd where there is one, else as signal().
  void pass_on(int signal) noexcept;

  // The rank's number in the job.
  int number_of(int rank) const noexcept { return first_rank_ + rank; }
  // The ranks that run.
  std::vector<int> running() const;
  // The process of each rank.
  std::vector<RunningRank> processes() const;
  // Whether the process is a rank.
  bool has(pid_t pid) const noexcept;
  // /dev/null, for other processes too.
  int null_fd() const noexcept { return null_.get(); }

 private:
  RankProcess start_one(int rank);

  const Options& options_;
  const SignalQueue& signals_;
  const int first_rank_;
  Output& output_;
  DeathWatch& deaths_;
  UniqueFd null_;
  const std::vector<RankCommand>* commands_ = nullptr;
  std::vector<RankProcess> ranks_;  // pid -1 once reaped
};

}  // namespace gradwire::launch

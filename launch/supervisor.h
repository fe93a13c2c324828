// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Watches the ranks of one job from the first start to the last end.
#pragma once

#include <poll.h>

#include <chrono>
#include <optional>
#include <vector>

#include "gradwire/base/deadline.h"
#include "launch/death_watch.h"
#include "launch/descendants.h"
#include "launch/options.h"
#include "launch/output.h"
#include "launch/rank_process.h"
#include "launch/report.h"
#include "launch/signals.h"

namespace gradwire::launch {

// One rank to start.
struct RankCommand {
  std::vector<std::string> command;
  std::vector<std::string> environment;
  int stdin_fd = -1;  // stays the caller's; -1: /dev/null
};

// What a supervisor knows of the rest of the job.
struct JobView {
  OutputNames names;
  // How long the ranks may take to notice that one has ended badly before they get SIGTERM. On a busy machine a rank
  // needs more than a quarter of a second from the death to the end of its own error message.
  std::chrono::milliseconds notice_time{1000};
  int alarm_fd = -1;                     // readable once the job has failed on another host
  Deadline job_end = Deadline::never();  // --timeout
  bool gentle = false;                   // the ranks are asked to end, not killed, when the process in front was killed
};

// The ranks of one job on this host. The life of a job that goes wrong:
//
//   running     every rank is there, or has left with 0
//   noticing    a rank has ended badly, here or on another host; the others get a moment to notice it themselves,
//               because a program without a handler for SIGTERM would die of it without a word, and its PeerError
//               says more
//   asked       they have got SIGTERM, and --grace to report and leave
//   killed      they have got SIGKILL
//
// and at every end: what the ranks left behind gets a moment to go by itself (helpers that clean up after a process
// do), then SIGKILL. One thread, one poll loop; nothing in it blocks.
class Supervisor {
 public:
  // All outlive the supervisor. When `front_fd` becomes readable, the job is killed at once. Throws LaunchError.
  Supervisor(const Options& options, SignalQueue& signals, int front_fd, const JobView& view);
  // Kills whatever still runs.
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  // Starts all ranks, returns when the last is gone, and with it everything it started. Throws LaunchError when a
  // program cannot be started.
  JobOutcome run(const std::vector<RankCommand>& ranks);
  // Whether the process in front was killed, so that nobody waits for the outcome.
  bool is_abandoned() const noexcept { return front_fd_ < 0; }
  // Writes a text to stderr behind all output of the ranks, and returns when everything is written, or a signal says to
  // leave.
  void finish_output(const std::string& text);

 private:
  enum class Phase { running, noticing, asked, killed };

  void start_ranks(const std::vector<RankCommand>& ranks);
  void start_one(const RankCommand& command, int rank, CpuSet cpus, int null_fd);
  // Waits until something happens or `until` comes, and deals with it.
  void step(Deadline until);
  void advance();
  void enter(Phase phase);
  void on_signal(int signal);
  void on_front_death();
  void on_alarm();
  void on_rank_end(int rank);
  void reap_orphans();
  void clear_leftovers();
  void signal_ranks(int signal) noexcept;
  std::vector<int> running_ranks() const;
  bool is_rank(pid_t pid) const noexcept;

  const Options& options_;
  SignalQueue& signals_;
  int front_fd_;  // -1 once the front has died
  JobView view_;
  Descendants descendants_;
  DeathWatch deaths_;
  Output output_;
  std::vector<RankProcess> ranks_;  // pid -1 once reaped
  JobOutcome outcome_;
  Phase phase_ = Phase::running;
  Deadline phase_end_ = Deadline::never();
  Deadline job_end_;
  Deadline repeat_guard_ = Deadline::never();
  Deadline::Clock::time_point started_{};
  bool leave_ = false;  // a signal came after the ranks were gone
  bool ranks_gone_ = false;
};

}  // namespace gradwire::launch

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Starts the ranks of one attempt on this host, watches them, and stops them.
#pragma once

#include <poll.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/base/deadline.h"
#include "launch/death_watch.h"
#include "launch/descendants.h"
#include "launch/elastic_watch.h"
#include "launch/flight_watch.h"
#include "launch/live_watch.h"
#include "launch/options.h"
#include "launch/output.h"
#include "launch/rank_set.h"
#include "launch/report.h"
#include "launch/signals.h"
#include "launch/stall_checks.h"

namespace gradwire::launch {

// The supervisor's information about the rest of the job.
struct JobView {
  OutputNames names;
  // The time that the other ranks have to notice a failed rank before they get SIGTERM. On a busy machine a rank needs
  // more than a quarter of a second from the death to the end of its own error message.
  std::chrono::milliseconds notice_time{1000};
  FlightWatch* flight = nullptr;  // of the ranks of this host; outlives the supervisor; null: nothing is said of calls
  LiveWatch* live = nullptr;      // shows how the ranks get on; outlives the supervisor; null: nobody watches
  int alarm_fd = -1;              // readable once the job has failed on another host
  Deadline job_end = Deadline::never();               // --timeout
  std::optional<ElasticView> elastic = std::nullopt;  // empty: a rank that fails ends the job
  LineFilter filter = nullptr;                        // of the ranks' output
  bool gentle = false;  // when the front process was killed, ranks get SIGTERM first, not SIGKILL
};

// The ranks of one job on this host. A job that fails has four phases:
//
//   running     every rank runs, or has exited with 0
//   noticing    a rank has failed, here or on another host; the other ranks have notice_time to notice the failure
//               themselves, because SIGTERM would end a program without a handler before it can print its own error
//               (a PeerError)
//   asked       the other ranks have got SIGTERM, and have --grace to report and exit
//   killed      the other ranks have got SIGKILL
//
// In an elastic job, a rank that fails while the job runs is replaced by a new process under the same number.
//
// At the end of every job, processes that the ranks left running have a short time to exit by themselves (helpers that
// clean up after a process do so), then get SIGKILL. One thread with one poll loop, in which no call blocks.
class Supervisor {
 public:
  // The arguments outlive the supervisor. When `front_fd` becomes readable, the job is killed at once. Throws
  // LaunchError.
  Supervisor(const Options& options, SignalQueue& signals, int front_fd, const JobView& view);
  // Kills all processes of the job that still run.
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  // Starts all ranks, and returns when all ranks and all processes that they started have ended. Throws LaunchError
  // when a program cannot be started.
  JobOutcome run(const std::vector<RankCommand>& ranks);
  // Whether the front process was killed, so that no process waits for the outcome.
  bool is_abandoned() const noexcept { return front_fd_ < 0; }
  // Writes a text to stderr after all output of the ranks, and returns when everything is written, or when a signal
  // ends the job.
  void finish_output(const std::string& text);
  // The signal that ended the job after its ranks were gone; 0 for none.
  int late_interruption() const noexcept { return late_interruption_; }

 private:
  enum class Phase { running, noticing, asked, killed };

  // Waits for an event or until `until`, and handles the event.
  void step(Deadline until);
  void advance();
  void enter(Phase phase);
  void on_signal(int signal);
  void on_front_death();
  void on_alarm();
  void on_rank_end(int rank);
  void on_coordinator_end();
  // In an elastic job: starts a new process in the place of the rank. Returns false where the failure ends the job.
  bool replace(int rank, const ProcessEnd& end);
  // Goes on while an elastic job has ranks on other hosts.
  void serve_other_hosts();
  // Shows how the ranks get on, and tells of a standstill whose source lines have been found.
  void show();
  // Waits for the source lines of what is to be told, or until a signal ends the job; returns the text.
  std::string finish_lookup();
  void reap_orphans();
  void clear_leftovers();

  const Options& options_;
  SignalQueue& signals_;
  int front_fd_;  // -1 once the front has died
  JobView view_;
  Descendants descendants_;
  DeathWatch deaths_;
  Output output_;
  RankSet ranks_;
  StallChecks stall_;
  std::optional<ElasticWatch> elastic_;
  JobOutcome outcome_;
  Phase phase_ = Phase::running;
  Deadline phase_end_ = Deadline::never();
  Deadline job_end_;
  Deadline repeat_guard_ = Deadline::never();
  Deadline::Clock::time_point started_{};
  bool leave_ = false;  // nobody waits for the output any more
  int late_interruption_ = 0;
  bool ranks_gone_ = false;
};

}  // namespace gradwire::launch

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Starts the ranks of one attempt on this host, watches them, and stops them.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/base/deadline.h"
#include "launch/death_watch.h"
#include "launch/elastic_watch.h"
#include "launch/end_phases.h"
#include "launch/flight_watch.h"
#include "launch/interruptions.h"
#include "launch/job_events.h"
#include "launch/leftovers.h"
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
  std::function<void()> on_failure = nullptr;         // called once, as soon as a failed rank ends the job
  std::function<void()> on_interruption = nullptr;    // called once, when a signal tells this launcher to end the job
  Deadline job_end = Deadline::never();               // --timeout
  std::optional<ElasticView> elastic = std::nullopt;  // empty: a rank that fails ends the job
  // Returns what to say of a rank that has failed where the job goes on without it; empty where the failure ends the
  // job.
  std::function<std::string(int rank, const ProcessEnd& end)> goes_on_without = nullptr;
  LineFilter filter = nullptr;  // of the ranks' output
  // The ranks are launchers of other hosts: when the front process was killed, they get SIGTERM first, not SIGKILL, and
  // a second SIGINT is theirs to handle.
  bool gentle = false;
};

// The ranks of one job on this host: starts them, decides what each event means for the job, and stops them. EndPhases
// has the phases of a job that fails. In an elastic job, a rank that fails while the job runs is replaced by a new
// process under the same number.
//
// One thread with one poll loop, in which no call blocks, but for ElasticView::answers on a host that has joined.
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
  bool is_abandoned() const noexcept { return !events_.has_front(); }
  // Writes a text to stderr after all output of the ranks, and returns when everything is written, or when a signal
  // ends the job.
  void finish_output(const std::string& text);
  // The signal that ended the job after its ranks were gone; 0 for none.
  int late_interruption() const noexcept { return late_interruption_; }

 private:
  using Phase = EndPhases::Phase;

  // Waits for an event or until `until`, and handles what has happened.
  void step(Deadline until);
  // Begins the phase, unless the job is in a later one.
  void enter(Phase phase);
  void on_time();
  // Does what waits for the second look at the processes, if something does.
  void end_wait();
  void on_signal(int signal);
  void on_rank_end(int rank);
  void set_first_bad(int rank);
  void on_front_death();
  void on_coordinator_end();
  // Kills the rank for which the others wait (--replace-stalled).
  void check_stall();
  // Goes on while an elastic job has ranks on other hosts.
  void serve_other_hosts();
  // Shows how the ranks get on, and tells of a standstill whose source lines have been found.
  void show();
  // Waits for the source lines of what is to be told, or until a signal ends the job; returns the text.
  std::string finish_lookup();
  void clear_leftovers();
  // Whether somebody waits for the output.
  bool has_reader() const noexcept { return events_.has_front() && late_interruption_ == 0; }

  const JobView view_;
  Leftovers leftovers_;
  DeathWatch deaths_;
  Output output_;
  RankSet ranks_;
  StallChecks stall_;
  std::optional<ElasticWatch> elastic_;
  JobEvents events_;
  const std::chrono::milliseconds stall_bound_;  // --stall
  EndPhases::Time asked_to_leave_{};             // by the first signal
  EndPhases phases_;
  Interruptions interruptions_;
  // What is done once a second look has shown what the job, which stands still, waits for.
  struct AfterLook {
    Deadline due;
    int signal = 0;  // for the ranks; 0: the job ran too long, and the ranks are asked to end
  };
  std::optional<AfterLook> after_look_;
  EndPhases::Time started_{};
  JobOutcome outcome_;
  int late_interruption_ = 0;
  bool ended_by_row_ = false;      // an elastic job was ended because of its deaths
  bool failed_after_job_ = false;  // a rank failed after the last step of an elastic job
  bool hosts_kill_ = false;        // JobView::gentle: the second SIGINT was passed on
};

}  // namespace gradwire::launch

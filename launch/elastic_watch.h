// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What a supervisor does besides in an elastic job: it keeps the job's coordinator running, and decides whether a rank
// that failed gets a new process.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/base/deadline.h"
#include "gradwire/membership/job_course.h"
#include "launch/death_rate.h"
#include "launch/death_watch.h"
#include "launch/pulse.h"
#include "launch/rank_set.h"
#include "launch/report.h"

namespace gradwire::launch {

// A job whose ranks are replaced when they fail.
struct ElasticView {
  // The program that decides who takes part; it is started again when it ends. Empty: it runs on another host.
  std::optional<RankCommand> coordinator;
  std::string journal = {};  // the path of the coordinator's journal
  // A coordinator that gives no sign of life for so long is killed, and started again.
  Milliseconds coordinator_limit{10'000};
  // Of ranks, and of the coordinator: more end this launcher's part. So do more deaths of ranks between which the job
  // did not come further.
  int deaths_per_minute = 10;
  std::function<membership::JobCourse()> course;  // how the job goes, as far as it is known here; never null
  // Whether ranks of other hosts still need this host's coordinator, when the ranks of this host have ended well. Null:
  // there are no other hosts.
  std::function<bool()> has_hosts = nullptr;
  // Whether the job's store answers and the job goes on. Ranks that die while it does not say nothing of themselves, so
  // they never end the job. Null: this host has the store.
  std::function<bool()> answers = nullptr;
  std::string host = {};  // Joined::host of this launcher's ranks
  // Called when a rank has died. Null: this host has the coordinator, which sees that itself.
  std::function<void()> on_death = nullptr;
};

// For one thread. Texts are lines of "gradwire-run: ...".
class ElasticWatch final {
 public:
  // The coordinator's number among the watched processes.
  static constexpr int kCoordinator = -1;

  // The references outlive the object.
  ElasticWatch(ElasticView view, const SignalQueue& signals, RankSet& ranks, DeathWatch& deaths);
  // Ends the coordinator.
  ~ElasticWatch();
  ElasticWatch(const ElasticWatch&) = delete;
  ElasticWatch& operator=(const ElasticWatch&) = delete;

  // Starts the coordinator, where this host has it. Throws LaunchError.
  void start();
  // Kills the coordinator; its journal is on the disk.
  void stop() noexcept;
  // As ElasticView::has_hosts.
  bool has_hosts() const { return view_.has_hosts && view_.has_hosts(); }
  bool is_coordinator(pid_t pid) const noexcept { return pid == coordinator_.pid; }

  // Kills the coordinator where it hangs; on_coordinator_end() comes then. Call at next_look().
  void look(PulseWatch::Time now);
  Deadline next_look() const { return pulse_.next_look(); }

  // How the job goes on after a death.
  struct Answer {
    bool goes_on = false;
    bool is_replaced = false;    // a new process runs in the place of the one that has died
    bool fails_the_job = false;  // where the job goes on: it has failed all the same, when the other ranks have ended
    std::string text;            // what to tell
  };
  // The coordinator has ended: starts it again, unless it ends too often.
  Answer on_coordinator_end();
  // A rank has ended badly and was reaped, and its process had the number `process`: counts the death, and starts a new
  // process in its place, unless ranks die too often, or nobody holds the state of the job. A rank that had part in the
  // last step of a job that has finished is not replaced, and fails the job. `last_lines` returns
  // EarlierDeath::last_lines, once all output was read.
  Answer on_rank_death(pid_t process, const EarlierDeath& death, std::function<std::vector<std::string>()> last_lines);
  // The first of this launcher's deaths between which the job did not come further, where on_rank_death() has answered
  // that the job ends; nothing where there was one death only. Call after all output was read.
  std::optional<EarlierDeath> first_of_row() const;
  // Whether the job has ended because nobody holds its state.
  bool has_lost_state() const { return view_.course().has_lost_state(); }

 private:
  const ElasticView view_;
  const SignalQueue& signals_;
  RankSet& ranks_;
  DeathWatch& deaths_;
  RankProcess coordinator_;  // pid -1: none
  PulseWatch pulse_;         // of the coordinator
  bool was_silent_ = false;  // the coordinator, and was killed for that
  DeathRate rank_deaths_;
  struct First {
    EarlierDeath death;
    std::function<std::vector<std::string>()> last_lines;
  };
  // After which the job went on, of each epoch of the row (JobCourse::row_epoch()). One that died as its epoch began
  // may stand in the epoch before.
  std::map<std::int64_t, First> first_deaths_;
  DeathRate coordinator_deaths_;
};

}  // namespace gradwire::launch

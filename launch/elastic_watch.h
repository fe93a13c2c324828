// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What a supervisor does besides in an elastic job: it keeps the job's coordinator running, and decides whether a rank
// that failed gets a new process.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "launch/death_rate.h"
#include "launch/death_watch.h"
#include "launch/rank_set.h"

namespace gradwire::launch {

// A job whose ranks are replaced when they fail.
struct ElasticView {
  // The program that decides who takes part; it is started again when it ends. Empty: it runs on another host.
  std::optional<RankCommand> coordinator;
  std::string journal = {};    // the path of the coordinator's journal
  int deaths_per_minute = 10;  // of ranks, and of the coordinator; more end this launcher's part
  // Whether ranks of other hosts still need this host's coordinator, when the ranks of this host have ended well. Null:
  // there are no other hosts.
  std::function<bool()> has_hosts = nullptr;
  // Whether the job's store answers and the job goes on. Ranks that die while it does not say nothing of themselves, so
  // they never end the job. Null: this host has the store.
  std::function<bool()> answers = nullptr;
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

  // How the job goes on after a death.
  struct Answer {
    bool goes_on = false;
    bool is_replaced = false;  // a new process runs in the place of the one that has died
    std::string text;          // what to tell
  };
  // The coordinator has ended: starts it again, unless it ends too often.
  Answer on_coordinator_end();
  // A rank, numbered from 0 on this host, has ended badly and was reaped: counts the death, and starts a new process in
  // its place, unless ranks die too often.
  Answer on_rank_death(int rank, const ProcessEnd& end);

 private:
  const ElasticView view_;
  const SignalQueue& signals_;
  RankSet& ranks_;
  DeathWatch& deaths_;
  RankProcess coordinator_;  // pid -1: none
  DeathRate rank_deaths_;
  DeathRate coordinator_deaths_;
};

}  // namespace gradwire::launch

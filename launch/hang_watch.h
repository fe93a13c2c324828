// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Which rank of an elastic job is killed because the others wait for it: --replace-stalled.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/base/deadline.h"
#include "gradwire/base/watched_time.h"
#include "gradwire/observe/diagnosis.h"
#include "gradwire/observe/flight_table.h"
#include "launch/present_epoch.h"
#include "launch/rank_process.h"

namespace gradwire::launch {

// What a look at a job that stands still shows. Vectors have an entry for each rank of this host.
struct HangSight {
  const observe::Diagnosis& diagnosis;  // of the present epoch
  const PresentEpoch& epoch;
  const std::vector<observe::RankTable>& tables;
  const std::vector<RunningRank>& running;
  const std::vector<int>& groups;  // the process group of the process that records; -1: there is no such process
  std::int64_t standstill = 0;     // how long no call has begun or ended, in nanoseconds
};

// Whom to kill, or that nobody is killed.
struct HangAnswer {
  std::optional<int> kill = {};  // a rank of this host, counted from 0
  std::string text;              // a line that says so
};

// Answers when two looks in a row show the same, after a standstill of the whole bound in time that this process has
// watched: a machine or a process that does not run makes everybody look stuck. Each standstill is answered once,
// unless a rank that could not be killed can be killed later. For one thread.
class HangWatch final {
 public:
  using Time = Deadline::Clock::time_point;

  // `host`: the name of this host, for texts.
  HangWatch(Milliseconds bound, std::string host) : bound_(bound), host_(std::move(host)) {}

  // A look at `now`: a call last began or ended at `event`. The next look comes after about `pause`. Returns whether
  // the job has stood still for long enough to call judge().
  bool look(Time now, std::int64_t event, Milliseconds pause);
  // The ranks have not run for a while because somebody wanted that: a standstill begins anew.
  void forget() noexcept { event_.reset(); }
  // Decides.
  std::optional<HangAnswer> judge(const HangSight& sight);

 private:
  const Milliseconds bound_;
  const std::string host_;
  WatchedTime time_;
  std::optional<std::int64_t> event_;
  WatchedTime::Duration since_{};  // when event_ was first seen
  std::string last_;               // what the look before showed
  bool told_ = false;              // that nobody is killed
};

}  // namespace gradwire::launch

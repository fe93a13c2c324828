// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How the ranks of a job get on, and the three ways to say so: for a terminal, as a page, for Prometheus. Pure
// functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/observe/run_sums.h"

namespace gradwire::launch {

// One rank, over the steps between two looks.
struct LiveRank {
  int rank = 0;                           // in the job
  std::optional<observe::RunSums> now{};  // nothing: the rank has not begun to record
  double steps_per_second = 0;
  double step = 0;  // seconds of a step, as the next three
  double compute = 0;
  double communication = 0;  // the thread that trains waits for a collective
  double hook = 0;           // it waits for the rest of averaging
  // Bytes a step, for buckets. Nothing where the steps had no buckets that are recorded: PyTorch's
  // DistributedDataParallel tells of none, and of no hooks.
  std::optional<double> sent{};
  bool any_steps = false;  // a step has ended between the looks; without one, all above is 0 or nothing
};

// The steps that ended between `before` (nothing: the beginning) and `now`, two looks at one process. Where no step
// did, LiveRank::any_steps is false. When the looks were does not matter: the steps per second are those between the
// ends of the last steps, with the time between steps.
LiveRank live_rank(int rank, const std::optional<observe::RunSums>& before, const observe::RunSums& now);

// The ranks for which the others wait: those that compute 1.2 times as long as the median rank, or more. Empty for one
// rank, and where too little is known.
std::vector<int> slow_ranks(const std::vector<LiveRank>& ranks);

// One line about the whole job, without a line end: "step 1200, 12.3 steps/s, 8% waiting, ...".
std::string line_of_job(const std::vector<LiveRank>& ranks);
// A table with a line for each rank, at most `width` columns wide and `height` lines high. `now`: nanoseconds of
// CLOCK_MONOTONIC.
std::string table_of_ranks(const std::vector<LiveRank>& ranks, std::int64_t now, int width, int height);
// A page of HTML that loads nothing else and comes again every second.
std::string page_of_ranks(const std::vector<LiveRank>& ranks, std::int64_t now);
// Prometheus' text format, version 0.0.4.
std::string metrics_of_ranks(const std::vector<LiveRank>& ranks);

}  // namespace gradwire::launch

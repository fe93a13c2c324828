// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Where a launcher that is watched knows from how its ranks get on: the files of their recorders, the launchers of
// other hosts, or both.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gradwire/base/deadline.h"
#include "gradwire/observe/run_sums.h"

namespace gradwire::launch {

// How far a rank was at a time.
struct LiveLook {
  observe::RunSums sums;
  Deadline::Clock::time_point time;
};

// For one thread.
class LiveSource {
 public:
  virtual ~LiveSource() = default;
  // An attempt begins, with `count` ranks from `first_rank` on.
  virtual void follow(int first_rank, int count) = 0;
  // Asks anew for what look() says. Before the first look() of several.
  virtual void refresh() {}
  // The newest about the index-th of these ranks; nothing while it has not begun to record in this attempt.
  virtual std::optional<LiveLook> look(std::size_t index) = 0;
};

// The files into which the ranks of this host record; the ranks do nothing for it.
class RecordFiles final : public LiveSource {
 public:
  explicit RecordFiles(std::string folder) : folder_(std::move(folder)) {}
  void follow(int first_rank, int count) override;
  std::optional<LiveLook> look(std::size_t index) override;

 private:
  struct File {
    std::string path;
    std::int64_t opened_before = 0;  // the file of an attempt or a run before; it says nothing of this one
  };
  const std::string folder_;
  std::vector<File> files_;
};

// What the launchers that --hosts has started say about their ranks, in lines of their own among their output.
class HostReports final : public LiveSource {
 public:
  void follow(int first_rank, int count) override;
  std::optional<LiveLook> look(std::size_t index) override;
  // Takes the report out of a line of such a launcher, and returns what is left of the line; nothing where the line is
  // no more than a report.
  std::optional<std::string_view> take(std::string_view line);

 private:
  struct Rank {
    std::optional<LiveLook> newest;
    // From the clock of the rank's host to this host's, in nanoseconds, with the shortest way that a report has taken.
    // So the time between two reports is that between their making, whatever way they took.
    std::int64_t shift = std::numeric_limits<std::int64_t>::max();
  };
  int first_rank_ = 0;
  std::vector<Rank> ranks_;
};

// Node 0's ranks by their files, which are the first of the job, and those of the other nodes by what their launchers
// tell node 0.
class NodeReports final : public LiveSource {
 public:
  // What each node has told last, by node: lines of report_line().
  using Ask = std::function<std::vector<std::string>()>;

  NodeReports(std::unique_ptr<LiveSource> own, int own_ranks, Ask ask)
      : own_(std::move(own)), own_ranks_(own_ranks), ask_(std::move(ask)) {}
  void follow(int first_rank, int count) override;
  void refresh() override;
  std::optional<LiveLook> look(std::size_t index) override;

 private:
  const std::unique_ptr<LiveSource> own_;
  const int own_ranks_;
  const Ask ask_;
  HostReports others_;
  std::vector<std::string> told_;  // by node; what has been taken
};

// The line with which a launcher says how a rank is: with its line end, and at most 1 KiB long.
// docs/format/launcher.md specifies it. `rank`: the launcher's number of the rank. `now`: nanoseconds of this host's
// CLOCK_MONOTONIC.
std::string report_line(int rank, const observe::RunSums& sums, std::int64_t now);

}  // namespace gradwire::launch

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Follows the steps that the ranks of this host record, and shows them: --watch on the terminal, --watch-port as a
// page.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/base/deadline.h"
#include "launch/live_ranks.h"
#include "launch/options.h"
#include "launch/output.h"
#include "launch/page_server.h"

namespace gradwire::launch {

// Reads the files into which the ranks record; the ranks do nothing for it. One thread calls the methods.
class LiveWatch {
 public:
  // `folder`: where the ranks record. `options` outlives the object. Throws LaunchError: the port is taken.
  LiveWatch(const Options& options, std::string folder);

  // The ranks of this host are numbered from `first_rank` on; an attempt begins.
  void follow(int first_rank);
  // When look() is to be called next.
  Deadline next_look() const noexcept;
  // Looks at the files when it is time, shows what they say, and answers those who ask for the page.
  void look(Output& output);
  // The ranks have ended: shows the last state, which stays.
  void finish(Output& output);

 private:
  // The means that are shown are those over so many looks, a second each.
  static constexpr std::size_t kMoments = 6;

  struct Moment {
    Deadline::Clock::time_point time;
    observe::RunSums sums;
  };
  struct File {
    std::string path;
    std::int64_t opened_before = 0;  // the file of an attempt or a run before; it says nothing of this one
    std::deque<Moment> moments;      // the last, up to kMoments; the newest last
  };
  void read();
  void show(Output& output);
  std::optional<Page> page(std::string_view path) const;

  const Options& options_;
  const std::string folder_;
  std::optional<PageServer> server_;
  bool told_port_ = false;
  std::vector<File> files_;
  std::vector<LiveRank> ranks_;
  Deadline::Clock::time_point begun_;  // of the attempt
  Deadline next_read_ = Deadline::after(std::chrono::milliseconds(0));
  Deadline next_line_ = Deadline::after(std::chrono::milliseconds(0));
};

}  // namespace gradwire::launch

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Follows the steps that ranks record, and shows them: --watch on the terminal, --watch-port as a page, --report-steps
// as lines for the launcher that started this one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gradwire/base/deadline.h"
#include "launch/live_ranks.h"
#include "launch/live_source.h"
#include "launch/options.h"
#include "launch/output.h"
#include "launch/page_server.h"
#include "launch/recent_looks.h"

namespace gradwire::launch {

// One thread calls the methods.
class LiveWatch {
 public:
  // `options` outlives the object. Throws LaunchError: the port is taken.
  LiveWatch(const Options& options, std::unique_ptr<LiveSource> source);

  // Calls `tell` with the lines of --report-steps, as often as they would be written.
  void tell(std::function<void(std::string lines)> tell) { tell_ = std::move(tell); }
  // An attempt begins, with `count` ranks from `first_rank` on.
  void follow(int first_rank, int count);
  // When look() is to be called next.
  Deadline next_look() const noexcept;
  // Asks the source when it is time, shows what it says, and answers those who ask for the page.
  void look(Output& output);
  // The ranks have ended: shows the last state, which stays.
  void finish(Output& output);

 private:
  void read();
  void show(Output& output);
  std::string reports() const;
  std::optional<Page> page(std::string_view path) const;

  const Options& options_;
  const std::unique_ptr<LiveSource> source_;
  std::function<void(std::string)> tell_;
  std::optional<PageServer> server_;
  bool told_port_ = false;
  std::vector<RecentLooks> looks_;  // of each rank
  std::vector<LiveRank> ranks_;
  Deadline next_read_ = Deadline::after(std::chrono::milliseconds(0));
  Deadline next_line_ = Deadline::after(std::chrono::milliseconds(0));
};

}  // namespace gradwire::launch

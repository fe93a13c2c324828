// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// When a rank that waits for others at the start of a job reports that it waits.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "gradwire/base/deadline.h"

namespace gradwire {

// One wait, which begins with the construction. Not thread-safe.
class WaitReport {
 public:
  // A report is due every `info` on the log's level info; and once after `notice`, also where no level was chosen.
  struct Periods {
    Milliseconds info = std::chrono::seconds(10);
    Milliseconds notice = std::chrono::seconds(30);
  };
  explicit WaitReport(Periods periods) : periods_(periods) {}
  WaitReport() : WaitReport(Periods()) {}

  // What the others look like to the rank that waits.
  struct Missing {
    std::string names;         // who has not come; empty: nobody, and there is no report
    bool gives_notice = true;  // false: another rank gives the notice
  };
  // Writes the report that is due, if any: "<who> has waited 30 s for <names>". The caller calls look() now and then
  // while the wait lasts; look() calls `missing` only when a report is due.
  void look(const std::string& who, const std::function<Missing()>& missing);

 private:
  const Periods periods_;
  const Deadline::Clock::time_point began_ = Deadline::Clock::now();
  std::int64_t infos_ = 0;  // how many reports there were
  bool noticed_ = false;
};

}  // namespace gradwire

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How often processes have died lately.
#pragma once

#include <chrono>
#include <deque>

#include "gradwire/base/deadline.h"

namespace gradwire::launch {

// Counts deaths within the last minute. Not thread-safe.
class DeathRate {
 public:
  using Time = Deadline::Clock::time_point;

  // Counts a death at `now`, which is not before the last one. Returns the number of deaths in the minute before `now`,
  // this one included.
  int add(Time now) {
    deaths_.push_back(now);
    while (now - deaths_.front() >= std::chrono::minutes(1)) deaths_.pop_front();
    return static_cast<int>(deaths_.size());
  }

 private:
  std::deque<Time> deaths_;
};

}  // namespace gradwire::launch

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How far a newcomer that follows is behind the members.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>

#include "gradwire/base/deadline.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::internal {

// The members wait for a newcomer to do so many steps, rather than give it the state while they wait.
inline constexpr std::int64_t kFewSteps = 10;

// Whether it would take the newcomer too long to do `steps` more, when each takes as long as `step`: the members wait.
inline bool is_far_behind(std::int64_t steps, std::chrono::microseconds step) {
  return steps > kFewSteps && steps * step > std::chrono::seconds(1);
}

// For one thread.
class Lag {
 public:
  // A newcomer that has not come nearer to the members within so many steps, and within this time, comes no nearer.
  static constexpr int kPatience = 50;
  explicit Lag(Milliseconds patience = std::chrono::seconds(5)) : patience_(patience) {}

  // The newcomer has done a step, and the members have begun `steps` more (not counting the one under way). Returns
  // whether they should stop for it: it is as far as they are, or a few steps behind and comes no nearer. Throws
  // AbortedError when it is further behind and comes no nearer.
  bool has_gone(std::int64_t steps) {
    if (steps <= 0) return true;
    if (steps < least_) {
      least_ = steps;
      steps_since_ = 0;
      given_up_ = Deadline::after(patience_);
      return false;
    }
    if (++steps_since_ < kPatience || !given_up_.expired()) return false;
    if (steps <= kFewSteps) return true;
    throw AbortedError(concat("it is ", steps, " steps behind the members, and not faster than they are"));
  }

 private:
  const Milliseconds patience_;
  Deadline given_up_ = Deadline::never();
  std::int64_t least_ = std::numeric_limits<std::int64_t>::max();
  int steps_since_ = 0;
};

}  // namespace gradwire::internal

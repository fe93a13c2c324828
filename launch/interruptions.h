// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The signals that end a job, the first of them and those that follow.
#pragma once

#include <chrono>
#include <optional>

#include "gradwire/base/deadline.h"

namespace gradwire::launch {

// Times are given by the caller and never go back. For one thread.
class Interruptions final {
 public:
  using Time = Deadline::Clock::time_point;

  enum class Kind {
    first,
    repeated,  // may be the first one, which has arrived twice
    another,
  };

  // A signal that ends the job arrives at `now`.
  Kind take(int signal, Time now) noexcept {
    // timeout(1) and others signal the launcher and its process group, so that one interruption arrives twice.
    constexpr std::chrono::milliseconds kRepeatTime{250};
    if (!first_) {
      first_ = signal;
      guard_ = now + kRepeatTime;
      return Kind::first;
    }
    return now < guard_ ? Kind::repeated : Kind::another;
  }

  // The first signal; 0 before it.
  int first() const noexcept { return first_.value_or(0); }

 private:
  std::optional<int> first_;
  Time guard_{};  // until then, a signal is a repeated one
};

}  // namespace gradwire::launch

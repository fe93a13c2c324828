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

  // A signal that ends the job is taken at `now`.
  Kind take(int signal, Time now) noexcept {
    if (first_) return now < guard_ ? Kind::repeated : Kind::another;
    first_ = signal;
    has_handled(now);
    return Kind::first;
  }
  // What the first signal asks for was done at `now`, which may have taken a while: a signal that arrived meanwhile is
  // taken after that.
  void has_handled(Time now) noexcept { guard_ = now + kRepeatTime; }

  // The first signal; 0 before it.
  int first() const noexcept { return first_.value_or(0); }

 private:
  // timeout(1) and others signal the launcher and its process group, so that one interruption arrives twice.
  static constexpr std::chrono::milliseconds kRepeatTime{250};

  std::optional<int> first_;
  Time guard_{};  // until then, a signal is a repeated one
};

}  // namespace gradwire::launch

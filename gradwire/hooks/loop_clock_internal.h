// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The times of a training loop's steps, as a hook sees them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <utility>

#include "gradwire/base/mutex.h"
#include "gradwire/hooks/choice_race_internal.h"

namespace gradwire::internal {

// When the forward passes of this rank began, and when the buckets of a step began and ended. Thread-safe.
class LoopClock {
 public:
  // `now` returns seconds since any fixed point, and never goes back.
  explicit LoopClock(std::function<double()> now) : now_(std::move(now)) {}

  // The forward pass of the next step begins.
  void begin_pass() GRADWIRE_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    next_pass_ = now_();
  }
  // A bucket of `iteration` begins. Returns true for the first bucket of an iteration: last() is then the time of the
  // step before.
  bool begin(std::uint32_t iteration) GRADWIRE_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    if (iteration_ == iteration) return false;
    const double now = now_();
    if (iteration_) last_ = {end_ - start_, now - start_, pass_ ? end_ - *pass_ : kUnknown};
    pass_ = std::exchange(next_pass_, std::nullopt);
    iteration_ = iteration;
    start_ = end_ = now;
    return true;
  }
  void end_bucket() GRADWIRE_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    end_ = std::max(end_, now_());
  }
  // The time of the step before the current one; none in the first step.
  std::optional<LoopTime> last() const GRADWIRE_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    return last_;
  }
  // What follows is no step after the last one.
  void forget() GRADWIRE_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    iteration_.reset();
    last_.reset();
  }

 private:
  static constexpr double kUnknown = std::numeric_limits<double>::infinity();

  const std::function<double()> now_;
  mutable Mutex mutex_;
  std::optional<std::uint32_t> iteration_ GRADWIRE_GUARDED_BY(mutex_);
  std::optional<double> next_pass_ GRADWIRE_GUARDED_BY(mutex_);  // seconds, as all times
  std::optional<double> pass_ GRADWIRE_GUARDED_BY(mutex_);
  double start_ GRADWIRE_GUARDED_BY(mutex_) = 0;
  double end_ GRADWIRE_GUARDED_BY(mutex_) = 0;
  std::optional<LoopTime> last_ GRADWIRE_GUARDED_BY(mutex_);
};

}  // namespace gradwire::internal

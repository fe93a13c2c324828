// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The times of a training loop's steps, as a hook sees them.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/hooks/choice_race_internal.h"

namespace gradwire::internal {

// When the forward passes of this rank began, and when the buckets of a step began and ended. A bucket on a device
// begins and ends there, at events of this thread's current stream: the CPU is ahead, as it only queues the work.
// Thread-safe.
class LoopClock {
 public:
  // `now` returns seconds since any fixed point, and never goes back.
  explicit LoopClock(std::function<double()> now);

  // The forward pass of the next step begins.
  void begin_pass() GRADWIRE_EXCLUDES(mutex_);
  // A bucket of `iteration` begins, on `device`. Returns true for the first bucket of an iteration: last() is then the
  // time of the step before, and the devices have ended the buckets of that step. Throws the error of a device that
  // failed.
  bool begin(std::uint32_t iteration, const c10::Device& device) GRADWIRE_EXCLUDES(mutex_);
  // A bucket on `device` has ended, or will have when the current stream has come to this point.
  void end_bucket(const c10::Device& device) GRADWIRE_EXCLUDES(mutex_);
  // The time of the step before the current one; none in the first step.
  std::optional<LoopTime> last() const GRADWIRE_EXCLUDES(mutex_);
  // What follows is no step after the last one.
  void forget() GRADWIRE_EXCLUDES(mutex_);

 private:
  // The buckets of one step on one device.
  struct OnDevice {
    c10::Device device;
    c10::Event start;
    std::vector<c10::Event> ends;
  };

  void begin_on(const c10::Device& device) GRADWIRE_REQUIRES(mutex_);
  double cost() const GRADWIRE_REQUIRES(mutex_);

  const std::function<double()> now_;
  mutable Mutex mutex_;
  std::optional<std::uint32_t> iteration_ GRADWIRE_GUARDED_BY(mutex_);
  std::optional<double> next_pass_ GRADWIRE_GUARDED_BY(mutex_);  // seconds, as all times
  std::optional<double> pass_ GRADWIRE_GUARDED_BY(mutex_);
  double start_ GRADWIRE_GUARDED_BY(mutex_) = 0;
  double end_ GRADWIRE_GUARDED_BY(mutex_) = 0;  // of the buckets on the CPU
  std::vector<OnDevice> on_devices_ GRADWIRE_GUARDED_BY(mutex_);
  std::optional<LoopTime> last_ GRADWIRE_GUARDED_BY(mutex_);
};

}  // namespace gradwire::internal

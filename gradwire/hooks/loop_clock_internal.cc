// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/hooks/loop_clock_internal.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace gradwire::internal {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::infinity();

c10::Event event_on(const c10::Device& device) {
  c10::Event event(device.type(), c10::EventFlag::BACKEND_DEFAULT);  // the flag of events that know their time
  event.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  return event;
}

}  // namespace

LoopClock::LoopClock(std::function<double()> now) : now_(std::move(now)) {}

void LoopClock::begin_pass() {
  const MutexLock lock(mutex_);
  next_pass_ = now_();
}

bool LoopClock::begin(std::uint32_t iteration, const c10::Device& device) {
  const MutexLock lock(mutex_);
  if (iteration_ == iteration) {
    begin_on(device);
    return false;
  }
  const double now = now_();
  if (iteration_) last_ = {cost(), now - start_, pass_ && on_devices_.empty() ? end_ - *pass_ : kUnknown};
  pass_ = std::exchange(next_pass_, std::nullopt);
  iteration_ = iteration;
  start_ = end_ = now;
  on_devices_.clear();
  begin_on(device);
  return true;
}

void LoopClock::end_bucket(const c10::Device& device) {
  const MutexLock lock(mutex_);
  if (device.is_cpu()) {
    end_ = std::max(end_, now_());
    return;
  }
  for (OnDevice& one : on_devices_)
    if (one.device == device) one.ends.push_back(event_on(device));
}

std::optional<LoopTime> LoopClock::last() const {
  const MutexLock lock(mutex_);
  return last_;
}

void LoopClock::forget() {
  const MutexLock lock(mutex_);
  iteration_.reset();
  last_.reset();
  on_devices_.clear();
}

void LoopClock::begin_on(const c10::Device& device) {
  if (device.is_cpu()) return;
  for (const OnDevice& one : on_devices_)
    if (one.device == device) return;
  on_devices_.push_back({device, event_on(device), {}});
}

// Events of different devices have no common time, so each device counts by itself.
double LoopClock::cost() const {
  double longest = end_ - start_;
  for (const OnDevice& one : on_devices_) {
    for (const c10::Event& end : one.ends) {
      end.synchronize();
      longest = std::max(longest, one.start.elapsedTime(end) / 1e3);
    }
  }
  return longest;
}

}  // namespace gradwire::internal

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/process_group/wait_clock_internal.h"

#include <atomic>
#include <chrono>

#include "gradwire/base/thread_local.h"

namespace gradwire::internal {
namespace {

std::int64_t monotonic_nanoseconds() noexcept {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::atomic<ClockReading> clock_reading{&monotonic_nanoseconds};
GRADWIRE_STATIC_THREAD_LOCAL WaitClock* clock_of_thread = nullptr;

std::int64_t read_clock() noexcept { return clock_reading.load(std::memory_order_relaxed)(); }

}  // namespace

void read_wait_clocks_with(ClockReading reading) noexcept {
  clock_reading = reading != nullptr ? reading : &monotonic_nanoseconds;
}

void WaitTime::begin() noexcept {
  const MutexLock lock(mutex_);
  if (under_way_++ == 0) began_ = read_clock();
}

void WaitTime::end() noexcept {
  const MutexLock lock(mutex_);
  if (--under_way_ == 0) total_ += read_clock() - began_;
}

std::int64_t WaitTime::nanoseconds() const noexcept {
  const MutexLock lock(mutex_);
  return total_;
}

WaitClock::WaitClock() : before_(clock_of_thread), waited_(std::make_shared<WaitTime>()), begin_(read_clock()) {
  clock_of_thread = this;
}

WaitClock::~WaitClock() { clock_of_thread = before_; }

std::int64_t WaitClock::own_nanoseconds() const noexcept { return read_clock() - begin_ - waited_->nanoseconds(); }

std::shared_ptr<WaitTime> WaitClock::time_of_thread() noexcept {
  return clock_of_thread != nullptr ? clock_of_thread->waited_ : nullptr;
}

WaitsForRanks::WaitsForRanks() noexcept
    : WaitsForRanks(clock_of_thread != nullptr ? clock_of_thread->waited_.get() : nullptr) {}

WaitsForRanks::WaitsForRanks(WaitTime* time) noexcept : time_(time) {
  if (time_ != nullptr) time_->begin();
}

WaitsForRanks::~WaitsForRanks() {
  if (time_ != nullptr) time_->end();
}

}  // namespace gradwire::internal

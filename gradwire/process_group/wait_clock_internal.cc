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

WaitClock::WaitClock() noexcept : before_(clock_of_thread), begin_(read_clock()) { clock_of_thread = this; }

WaitClock::~WaitClock() { clock_of_thread = before_; }

std::int64_t WaitClock::own_nanoseconds() const noexcept { return read_clock() - begin_ - waited_; }

WaitsForRanks::WaitsForRanks() noexcept : clock_(clock_of_thread) {
  if (clock_ != nullptr && clock_->depth_++ == 0) clock_->wait_began_ = read_clock();
}

WaitsForRanks::~WaitsForRanks() {
  if (clock_ != nullptr && --clock_->depth_ == 0) clock_->waited_ += read_clock() - clock_->wait_began_;
}

}  // namespace gradwire::internal

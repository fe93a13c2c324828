// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How long a thread computes and how long it waits for other ranks.
#pragma once

#include <cstdint>

namespace gradwire::internal {

// Returns nanoseconds that never go back.
using ClockReading = std::int64_t (*)() noexcept;

// For tests: every later reading of a WaitClock is that of `reading`; null: the monotonic clock. Thread-safe.
void read_wait_clocks_with(ClockReading reading) noexcept;

// Counts this thread's time from the constructor on, but not the time within a WaitsForRanks. The thread that made the
// object uses it; of several objects of a thread, the last one counts.
class WaitClock final {
 public:
  WaitClock() noexcept;
  ~WaitClock();
  WaitClock(const WaitClock&) = delete;
  WaitClock& operator=(const WaitClock&) = delete;

  // Not within a WaitsForRanks.
  std::int64_t own_nanoseconds() const noexcept;

 private:
  friend class WaitsForRanks;

  WaitClock* const before_;
  const std::int64_t begin_;
  std::int64_t waited_ = 0;
  std::int64_t wait_began_ = 0;
  int depth_ = 0;  // of WaitsForRanks
};

// While it exists, this thread is in a call that may wait for other ranks. May be nested. Without a WaitClock of this
// thread it costs one look.
class WaitsForRanks final {
 public:
  WaitsForRanks() noexcept;
  ~WaitsForRanks();
  WaitsForRanks(const WaitsForRanks&) = delete;
  WaitsForRanks& operator=(const WaitsForRanks&) = delete;

 private:
  WaitClock* const clock_;
};

}  // namespace gradwire::internal

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How long a thread computes and how long it waits for other ranks.
#pragma once

#include <cstdint>
#include <memory>

#include "gradwire/base/mutex.h"

namespace gradwire::internal {

// Returns nanoseconds that never go back.
using ClockReading = std::int64_t (*)() noexcept;

// For tests: every later reading of a WaitClock is that of `reading`; null: the monotonic clock. Thread-safe.
void read_wait_clocks_with(ClockReading reading) noexcept;

// How long threads have waited for other ranks. Waits at the same time count once. Thread-safe.
class WaitTime final {
 public:
  void begin() noexcept GRADWIRE_EXCLUDES(mutex_);
  void end() noexcept GRADWIRE_EXCLUDES(mutex_);
  // Of the waits that have ended.
  std::int64_t nanoseconds() const noexcept GRADWIRE_EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  int under_way_ GRADWIRE_GUARDED_BY(mutex_) = 0;
  std::int64_t began_ GRADWIRE_GUARDED_BY(mutex_) = 0;  // the first of those under way
  std::int64_t total_ GRADWIRE_GUARDED_BY(mutex_) = 0;
};

// Counts this thread's time from the constructor on, but not the time within a WaitsForRanks of this thread, or of
// others that work for it. The thread that made the object uses it; of several objects of a thread, the last one
// counts.
class WaitClock final {
 public:
  WaitClock();
  ~WaitClock();
  WaitClock(const WaitClock&) = delete;
  WaitClock& operator=(const WaitClock&) = delete;

  // Not within a WaitsForRanks.
  std::int64_t own_nanoseconds() const noexcept;

  // What a WaitsForRanks of another thread adds to, which works for this one. Null: this thread has no WaitClock.
  static std::shared_ptr<WaitTime> time_of_thread() noexcept;

 private:
  friend class WaitsForRanks;

  WaitClock* const before_;
  const std::shared_ptr<WaitTime> waited_;
  const std::int64_t begin_;
};

// While it exists, this thread is in a call that may wait for other ranks. May be nested. Without a WaitClock of this
// thread it costs one look.
class WaitsForRanks final {
 public:
  WaitsForRanks() noexcept;
  // `time`: of the thread for which this one works; null: nobody counts. It must outlive this object.
  explicit WaitsForRanks(WaitTime* time) noexcept;
  ~WaitsForRanks();
  WaitsForRanks(const WaitsForRanks&) = delete;
  WaitsForRanks& operator=(const WaitsForRanks&) = delete;

 private:
  WaitTime* const time_;
};

}  // namespace gradwire::internal

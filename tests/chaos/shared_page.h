// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Memory that all processes of a chaos test share, to communicate without a channel; and the time of a rank's death.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <new>
#include <type_traits>

namespace gradwire::testing {

// A T that this process shares with the processes that it forks. T's destructor does not run.
template <class T>
class SharedPage {
  static_assert(std::is_trivially_destructible_v<T>);

 public:
  SharedPage() {
    void* memory = ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    value_ = new (memory) T;
  }
  ~SharedPage() { ::munmap(value_, sizeof(T)); }
  SharedPage(const SharedPage&) = delete;
  SharedPage& operator=(const SharedPage&) = delete;
  T* operator->() const noexcept { return value_; }

 private:
  T* value_;
};

// The time of the victim's death; lies in shared memory.
class DeathClock {
 public:
  void stamp() noexcept { time_.store(now(), std::memory_order_relaxed); }
  // Call it only for a death that is certain to happen.
  void stamp_in(std::chrono::nanoseconds from_now) noexcept {
    time_.store(now() + from_now.count(), std::memory_order_relaxed);
  }
  bool stamped() const noexcept { return time_.load(std::memory_order_relaxed) != 0; }
  double milliseconds_since() const noexcept {
    return static_cast<double>(now() - time_.load(std::memory_order_relaxed)) * 1e-6;
  }

 private:
  using Time = std::atomic<std::int64_t>;
  static_assert(Time::is_always_lock_free);
  // steady_clock is the same for all processes of a machine.
  static std::int64_t now() noexcept {
    return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  }
  Time time_{0};
};

}  // namespace gradwire::testing

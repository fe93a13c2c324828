// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What the processes of a chaos test tell each other without a channel: memory that all see, and when a rank died.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <new>
#include <type_traits>

namespace gradwire::testing {

// A T that this process and those it forks share. T's destructor does not run.
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

// When the victim died; lies in shared memory.
class DeathClock {
 public:
  void stamp() noexcept { time_.store(now(), std::memory_order_relaxed); }
  // For a death that is certain to come.
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

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The time and the thread, for records.
#pragma once

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>

#include "gradwire/base/thread_local.h"

namespace gradwire::observe {

// Nanoseconds of a clock.
inline std::int64_t time_of(clockid_t clock) noexcept {
  timespec time{};
  ::clock_gettime(clock, &time);
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

inline GRADWIRE_STATIC_THREAD_LOCAL std::uint64_t number_of_thread = 0;  // 0: not asked for yet

// The kernel's number of this thread.
inline std::uint64_t own_thread() noexcept {
  if (number_of_thread == 0) number_of_thread = static_cast<std::uint64_t>(::syscall(SYS_gettid));
  return number_of_thread;
}

}  // namespace gradwire::observe

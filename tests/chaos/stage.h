// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The shared memory of the processes of one fault, in which they communicate without a channel.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>

#include "gradwire/backend/shared/futex_internal.h"
#include "gradwire/base/deadline.h"
#include "gradwire/base/strings.h"
#include "tests/chaos/fault.h"
#include "tests/chaos/shared_page.h"
#include "tests/conformance/world.h"

namespace gradwire::testing {

// A number that only grows, and for which other processes wait.
class Counter {
 public:
  void raise() noexcept {
    value_.fetch_add(1, std::memory_order_seq_cst);
    shared::futex_wake_all(value_);
  }
  std::uint32_t value() const noexcept { return value_.load(std::memory_order_seq_cst); }
  // Waits until the number is at least `least`; returns false when the guard passes first.
  bool await(std::uint32_t least) const noexcept {
    const Deadline guard = Deadline::after(kGuard);
    for (;;) {
      const std::uint32_t seen = value();
      if (seen >= least) return true;
      if (guard.expired()) return false;
      shared::futex_wait(value_, seen, Milliseconds(100));
    }
  }

 private:
  std::atomic<std::uint32_t> value_{0};
};

struct Stage {
  DeathClock death;
  // The current action of a rank: a string literal, which has the same address in all forked processes.
  std::array<std::atomic<const char*>, kMaxRanks> doing{};
  std::array<std::atomic<int>, kMaxRanks> calls{};
  std::array<std::atomic<pid_t>, kMaxRanks> pids{};
  std::array<std::atomic<bool>, kMaxRanks> leaves{};  // the rank has begun to leave the group
  std::atomic<int> port{0};                           // of the TcpStore
  Counter serving;                                    // raised when the TcpStore serves
  Counter told;                                       // the number of survivors whose calls threw
  Counter ready;                                      // free for use by the classes
  Counter done;
  std::atomic<int> number{0};
  std::atomic<pid_t> orphan{0};  // a process that outlives the rank it was forked from, and ends by itself
};

}  // namespace gradwire::testing

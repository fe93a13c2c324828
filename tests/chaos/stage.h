// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What the processes of one fault tell each other without a channel: memory that all of them map.
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

// A number that goes up, and for which others wait.
class Counter {
 public:
  void raise() noexcept {
    value_.fetch_add(1, std::memory_order_seq_cst);
    shared::futex_wake_all(value_);
  }
  std::uint32_t value() const noexcept { return value_.load(std::memory_order_seq_cst); }
  // Returns when the number is at least `least`; false at the guard.
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
  // What a rank is doing: a literal. It has one address in all the processes that were forked from one.
  std::array<std::atomic<const char*>, kMaxRanks> doing{};
  std::array<std::atomic<int>, kMaxRanks> calls{};
  std::array<std::atomic<pid_t>, kMaxRanks> pids{};
  std::atomic<int> port{0};  // of the TcpStore
  Counter serving;           // raised when that store is there
  Counter told;              // survivors that know
  Counter ready;             // for the classes, as they like
  Counter done;
  std::atomic<int> number{0};
  std::atomic<pid_t> orphan{0};  // a process that outlives the rank it was forked from, and ends by itself
};

}  // namespace gradwire::testing

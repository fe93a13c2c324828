// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A bell that ends a sleep.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "gradwire/base/os_handles.h"

namespace gradwire::ucx {

// Thread-safe.
class Bell {
 public:
  // Throws ResourceError when the system has no eventfd.
  Bell();

  // A number that changes with every ring.
  std::uint32_t number() const noexcept { return number_.load(std::memory_order_seq_cst); }
  void ring() noexcept;
  // Waits for a ring, also for one since the last wait() that a ring ended, or until `other` is readable (-1: only for
  // a ring), or for `limit`. May end early.
  void wait(int other, std::chrono::microseconds limit) noexcept;

 private:
  const UniqueFd event_;  // an eventfd
  std::atomic<std::uint32_t> number_{0};
};

}  // namespace gradwire::ucx

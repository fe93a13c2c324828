// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Sleeping on a word that other processes change.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace gradwire::shared {

// Sleeps while `word` holds `expected`, at most `limit`. May wake for no reason. The word may lie in memory that
// several processes map, which is why this is the raw call and not std::atomic::wait (private to a process).
void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
                std::chrono::microseconds limit) noexcept;

// Wakes all who sleep on `word`, in any process.
void futex_wake_all(const std::atomic<std::uint32_t>& word) noexcept;

// Tells the processor that this is a spin loop.
inline void spin_pause() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace gradwire::shared

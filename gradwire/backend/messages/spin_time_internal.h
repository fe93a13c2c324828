// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How long a waiter asks for frames before it sleeps.
#pragma once

#include <algorithm>
#include <chrono>

namespace gradwire::messages {

// Frames that come sooner than spinning would last are worth all of it. Where they come later, as over a slow network,
// spinning wins nothing and takes the processor from those who compute: then the time is halved each time, down to a
// sixteenth. `wake_up` is what a sleep may last beyond the frame: without it, waiters that have slept once would find
// that frames come late, because they sleep, and never spin again. Used by one thread at a time.
class SpinTime final {
 public:
  using Microseconds = std::chrono::microseconds;

  SpinTime(Microseconds full, Microseconds wake_up) : full_(full), wake_up_(wake_up), now_(full) {}

  Microseconds now() const noexcept { return now_; }
  // A waiter had nothing for so long, and then something moved.
  void learn(std::chrono::steady_clock::duration quiet) noexcept {
    constexpr int kLeastShare = 16;
    now_ = quiet <= full_ + wake_up_ ? full_ : std::max(now_ / 2, full_ / kLeastShare);
  }

 private:
  const Microseconds full_;
  const Microseconds wake_up_;
  Microseconds now_;
};

}  // namespace gradwire::messages

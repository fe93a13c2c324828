// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Deadlines: the point in time by which a blocking call must have ended.
#pragma once

#include <chrono>

namespace gradwire {

using Milliseconds = std::chrono::milliseconds;  // the unit of every duration in gradwire

// The default timeout is long, because a rank may save a checkpoint while the others wait. Backends notice the death of
// a rank without it, and at once.
inline constexpr Milliseconds kDefaultTimeout = std::chrono::minutes(30);

// `timeout` and `more`, neither of them negative; the longest duration there is where the sum would be longer.
constexpr Milliseconds saturated_sum(Milliseconds timeout, Milliseconds more) noexcept {
  return timeout > Milliseconds::max() - more ? Milliseconds::max() : timeout + more;
}

// A value on the monotonic clock. Copy freely; thread-safe like any value.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;  // the clock of every deadline: monotonic

  // The deadline `timeout` from now. A timeout of zero or less has expired already. A timeout too long for the clock
  // gives never().
  static Deadline after(Milliseconds timeout) noexcept { return after(timeout, Clock::now()); }
  // The same from `begin` on.
  static Deadline after(Milliseconds timeout, Clock::time_point begin) noexcept;
  static constexpr Deadline never() noexcept { return Deadline(Clock::time_point::max()); }

  // False for never().
  bool expired() const noexcept { return point_ != Clock::time_point::max() && Clock::now() >= point_; }
  // The time left: zero when expired, Milliseconds::max() for never(). Rounded up, so that a wait of that length
  // reaches the deadline.
  Milliseconds remaining() const noexcept;
  Clock::time_point point() const noexcept { return point_; }
  Deadline earlier(Deadline other) const noexcept { return point_ < other.point_ ? *this : other; }

 private:
  explicit constexpr Deadline(Clock::time_point point) noexcept : point_(point) {}
  Clock::time_point point_;
};

}  // namespace gradwire

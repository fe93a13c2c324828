// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Signs of life that the coordinator of an elastic job gives the launcher through a pipe, so that the launcher finds a
// coordinator that hangs.
#pragma once

#include "gradwire/base/deadline.h"
#include "gradwire/base/os_handles.h"

namespace gradwire::launch {

// The side of the process. For one thread.
class Pulse final {
 public:
  // `fd` is the descriptor of PulseWatch::begin(); the caller keeps it open.
  explicit Pulse(int fd) noexcept : fd_(fd) {}
  // Gives a sign of life where the last one is 200 ms old. Does not wait, and does nothing where nobody reads.
  void beat() noexcept;

 private:
  const int fd_;
  Deadline next_ = Deadline::after(Milliseconds(0));
};

// The side of the launcher, for one process at a time. Times are given by the caller and never go back. For one thread.
class PulseWatch final {
 public:
  using Time = Deadline::Clock::time_point;
  // Between two looks. Time beyond that does not count: the launcher may have been stopped itself.
  static constexpr Milliseconds kLook{1000};

  // A process that gives no sign of life for `limit` is silent.
  explicit PulseWatch(Milliseconds limit) noexcept : limit_(limit) {}
  // Watches a process that begins at `now`. Returns the descriptor for the process's Pulse. Throws LaunchError.
  UniqueFd begin(Time now);
  // The process has ended.
  void end() noexcept { reader_.reset(); }
  // Looks for signs of life. Returns true where the process is silent, once for each process.
  bool finds_silence(Time now);
  // When to look next; never while no process is watched, or after it was found silent.
  Deadline next_look() const;
  Milliseconds limit() const noexcept { return limit_; }

 private:
  const Milliseconds limit_;
  UniqueFd reader_;  // none: no process is watched
  Time looked_{};
  Deadline::Clock::duration silent_{};
};

}  // namespace gradwire::launch

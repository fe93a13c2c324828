// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// When ranks that try to reach each other give up.
#pragma once

#include "gradwire/base/deadline.h"
#include "gradwire/base/watched_time.h"

namespace gradwire::ucx {

// Has no clock: the caller brings the time, again and again. Used by one thread at a time.
class Reach {
 public:
  // `all_may_speak`: every partner has what it needs to connect. Else a partner may wait for partners of its own, and
  // nobody gives up before the deadline of the rendezvous. `silence`: after which a partner that was heard is gone.
  Reach(bool all_may_speak, Milliseconds silence);

  // Looks at the clock, at least every 200 ms. Time in which this process did not run does not count.
  void look(Deadline::Clock::time_point now);
  // How long this rank has tried.
  Milliseconds tried() const noexcept { return tried_; }
  bool is_over() const noexcept { return tried_ >= patience_; }
  // Whether a rank that hears that another one has given up may take its own partners for unreachable, too: all began
  // at about the same time, and the first that gives up ends the rendezvous for all.
  bool is_nearly_over() const noexcept { return tried_ >= patience_ / 2; }

 private:
  const Milliseconds patience_;
  WatchedTime time_;
  Milliseconds tried_{0};
};

}  // namespace gradwire::ucx

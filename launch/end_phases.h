// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The phases in which the ranks of a job on this host come to their end.
#pragma once

#include <optional>

#include "gradwire/base/deadline.h"

namespace gradwire::launch {

// How long the phases of EndPhases last.
struct PhaseTimes {
  Milliseconds notice{};                 // of noticing
  Milliseconds grace{};                  // of asked
  Deadline job_end = Deadline::never();  // when a job that still runs has run too long
};

// Only tells what is due: it sends no signals. Times are given by the caller and never go back. For one thread.
class EndPhases final {
 public:
  using Time = Deadline::Clock::time_point;

  // In their order.
  enum class Phase {
    running,   // every rank runs, or has exited with 0
    noticing,  // a rank has failed, here or on another host; the other ranks have PhaseTimes::notice to notice the
               // failure themselves, because SIGTERM would end a program without a handler before it can print its own
               // error (a PeerError)
    asked,     // the other ranks have got SIGTERM, and have PhaseTimes::grace to report and exit
    killed,    // the other ranks have got SIGKILL
    gone,      // no rank runs, or even SIGKILL did not end it in time
  };

  explicit EndPhases(const PhaseTimes& times) : times_(times) {}

  Phase phase() const noexcept { return phase_; }
  bool is(Phase phase) const noexcept { return phase_ == phase; }
  // Begins a phase. From any phase but `running` a job goes on to later ones only.
  void enter(Phase phase, Time now);
  // Whether the job still runs at its end.
  bool is_late(Time now) const noexcept { return is(Phase::running) && now >= times_.job_end.point(); }
  // The phase that follows because the present one has lasted long enough; nothing while it lasts.
  std::optional<Phase> due(Time now) const;
  // When is_late() or due() changes.
  Deadline next(Time now) const;

 private:
  const PhaseTimes times_;
  Phase phase_ = Phase::running;
  Time end_ = Time::max();  // of the phase
};

}  // namespace gradwire::launch

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/end_phases.h"

#include <algorithm>
#include <chrono>

namespace gradwire::launch {
namespace {

// How long a killed process may take to go: memory of many gigabytes is not given back at once.
constexpr Milliseconds kKillTime{5000};

EndPhases::Time later(EndPhases::Time now, Milliseconds time) {
  const auto most = std::chrono::floor<Milliseconds>(EndPhases::Time::max() - now);
  return time >= most ? EndPhases::Time::max() : now + time;
}

}  // namespace

void EndPhases::enter(Phase phase, Time now) {
  phase_ = phase;
  switch (phase) {
    case Phase::running:
    case Phase::gone:
      end_ = Time::max();
      break;
    case Phase::noticing:
      end_ = later(now, times_.notice);
      break;
    case Phase::asked:
      end_ = later(now, times_.grace);
      break;
    case Phase::killed:
      end_ = later(now, kKillTime);
      break;
  }
}

std::optional<EndPhases::Phase> EndPhases::due(Time now) const {
  if (end_ == Time::max() || now < end_) return std::nullopt;
  return phase_ == Phase::noticing ? Phase::asked : phase_ == Phase::asked ? Phase::killed : Phase::gone;
}

Deadline EndPhases::next(Time now) const {
  if (is(Phase::running)) return times_.job_end;
  if (end_ == Time::max()) return Deadline::never();
  return Deadline::after(std::chrono::ceil<Milliseconds>(std::max(end_ - now, Time::duration::zero())));
}

}  // namespace gradwire::launch

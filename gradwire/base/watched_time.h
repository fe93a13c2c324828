// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A clock for those who wait for signs of life.
#pragma once

#include <algorithm>
#include <optional>

#include "gradwire/base/deadline.h"

namespace gradwire {

// The time in which this process watched others. While a process or its machine stands still, nobody can be heard of,
// so that time says little about the others. So of the time between two looks, a limit counts at most. Not thread-safe.
class WatchedTime final {
 public:
  // As the clock of Deadline counts.
  using Duration = Deadline::Clock::duration;

  // Looks at `now`, which does not go back. Returns the watched time since the first look. `most`: of the time since
  // the look before, choose several times the usual time between two looks.
  Duration look(Deadline::Clock::time_point now, Duration most) noexcept {
    watched_ += std::min(now - last_.value_or(now), most);
    last_ = now;
    return watched_;
  }

 private:
  Duration watched_{};
  std::optional<Deadline::Clock::time_point> last_;
};

}  // namespace gradwire

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/base/deadline.h"

#include <algorithm>

namespace gradwire {

Deadline Deadline::after(Milliseconds timeout, Clock::time_point begin) noexcept {
  const auto room = std::chrono::duration_cast<Milliseconds>(Clock::time_point::max() - begin);
  return timeout >= room ? never() : Deadline(begin + std::max(timeout, Milliseconds(0)));
}

Milliseconds Deadline::remaining() const noexcept {
  if (point_ == Clock::time_point::max()) return Milliseconds::max();
  const auto now = Clock::now();
  return now >= point_ ? Milliseconds::zero() : std::chrono::ceil<Milliseconds>(point_ - now);
}

}  // namespace gradwire

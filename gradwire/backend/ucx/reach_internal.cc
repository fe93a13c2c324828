// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/ucx/reach_internal.h"

#include <algorithm>

namespace gradwire::ucx {
namespace {

// TCP sends the first packet of a connection four times within it.
constexpr Milliseconds kLeast{10'000};
constexpr Milliseconds kMostBetweenLooks{400};

}  // namespace

Reach::Reach(bool all_may_speak, Milliseconds silence)
    : patience_(all_may_speak ? std::max(kLeast, 4 * silence) : Milliseconds::max()) {}

void Reach::look(Deadline::Clock::time_point now) {
  tried_ = std::chrono::duration_cast<Milliseconds>(time_.look(now, kMostBetweenLooks));
}

}  // namespace gradwire::ucx

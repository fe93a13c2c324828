// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The messages that some classes of faults send in addition to those of the random program.
#pragma once

#include "tests/chaos/member.h"

namespace gradwire::testing {

inline constexpr std::uint32_t kTag = 1'000'000;  // beyond those of the program
inline constexpr std::size_t kEager = 300;        // bytes: sent at once
inline constexpr std::size_t kOffered = 300'000;  // bytes: sent when its receive was called
inline constexpr std::size_t kInPieces = 24'000'000;

inline Deadline guard() { return guarded().deadline; }

// Returns the message that `from` sends.
Bytes message(const Member& self, std::size_t bytes, int from);

// Waits for a receive from the victim into `got`. A message that arrives without an error must be complete and right.
void wait_for(Member& self, Request& receive, const Bytes& got);

}  // namespace gradwire::testing

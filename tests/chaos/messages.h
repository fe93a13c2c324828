// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The messages of the classes of faults that send some, beside those of the random program.
#pragma once

#include "tests/chaos/member.h"

namespace gradwire::testing {

inline constexpr std::uint32_t kTag = 1'000'000;  // beyond those of the program
inline constexpr std::size_t kEager = 300;        // bytes: goes at once
inline constexpr std::size_t kOffered = 300'000;  // goes when its receive is there
inline constexpr std::size_t kInPieces = 24'000'000;

inline Deadline guard() { return guarded().deadline; }

// What `from` sends.
Bytes message(const Member& self, std::size_t bytes, int from);

// Waits for a receive from the victim into `got`: what comes well must be whole and right.
void wait_for(Member& self, Request& receive, const Bytes& got);

}  // namespace gradwire::testing

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How many ranks may share the memory of one host.
#pragma once

#include <cstdint>

namespace gradwire {

// Of one group over shared memory: ranks are named by the bits of a 64-bit mask, and the layout has a place for each.
inline constexpr int kMaxRanksOfHost = 64;

// The bit of `rank` in such a mask.
constexpr std::uint64_t bit_of_rank(int rank) noexcept { return std::uint64_t{1} << static_cast<unsigned>(rank); }

}  // namespace gradwire

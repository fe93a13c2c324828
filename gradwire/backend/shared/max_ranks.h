// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How many ranks may share the memory of one host.
#pragma once

namespace gradwire {

// Of one group over shared memory: ranks are named by the bits of a 64-bit mask, and the layout has a place for each.
inline constexpr int kMaxRanksOfHost = 64;

}  // namespace gradwire

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Whether the collectives of a group read private memory through the kernel, or copy it through staging areas.
//
// Reading is one copy in place of two, but the kernel makes that copy alone, with a look at every page. Which of the
// two is faster depends on the processor: reading wins on an Intel Sapphire Rapids, staging on an AMD Zen 4
// (docs/decisions/0020). So ranks measure both when they meet; those that have done so in another group remember.
#pragma once

#include "gradwire/backend/shared/call_internal.h"
#include "gradwire/backend/shared/peer_memory_internal.h"
#include "gradwire/backend/shared/world_internal.h"

namespace gradwire::shared {

// Part of a collective call, whose deadline it keeps: all ranks decide alike, and tell `peer_memory`. A rank that the
// kernel refuses, or whose GRADWIRE_READ_PEERS is "0", decides against reading; "1" on all ranks decides for it. Throws
// what Call::enter() throws.
void choose_reading(Call& call, const World& world, PeerMemory& peer_memory);

}  // namespace gradwire::shared

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Which members leave a job because they and others do not reach each other over the network.
#pragma once

#include <cstdint>
#include <vector>

#include "gradwire/membership/roster.h"

namespace gradwire::membership {

// A member that has to leave, and why.
struct OutOfReach {
  std::int64_t member = 0;  // has to leave
  std::int64_t peer = 0;    // the two, or others of their hosts, do not reach each other
};

// Returns whom to drop so that the members of the present epoch that are left reach each other, as far as
// Roster::unreachable tells.
//
// The path between two hosts is broken for all of their members, so all members of one host go together; between
// members of one host, one member goes. First the host that does not reach the most others goes, of several the one
// whose first member joined last. A host stays where fewer than RosterOptions::min members would be left without it, or
// none that has begun a step, though some have: the state of the job would be lost. Nobody goes in a replay.
//
// Pure and thread-safe.
std::vector<OutOfReach> whom_to_drop(const Roster& roster);

}  // namespace gradwire::membership

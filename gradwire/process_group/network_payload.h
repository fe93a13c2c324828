// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The bytes that a rank sends to ranks of other hosts.
#pragma once

#include <cstdint>

#include "gradwire/process_group/process_group.h"

namespace gradwire {

// Returns the bytes that the textbook algorithms of ProcessGroup::payload_bytes() put on a network for this rank's
// collectives over `group` so far. For a HybridGroup, these are the bytes between hosts: those of the steps between
// hosts of its collectives, and those of hooks that run only between hosts (make_between_hosts_hook()). gather, scatter
// and all_to_all are not counted, because a HybridGroup hands them to the group of all ranks. For a group
// whose ranks change (ChangingRanks), the result is the sum over the groups that its calls have gone to. For any other
// group, the result is payload_bytes(). Thread-safe.
std::uint64_t network_payload_bytes(const ProcessGroup& group) noexcept;

}  // namespace gradwire

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What a rank sends to ranks that it cannot reach through memory.
#pragma once

#include <cstdint>

#include "gradwire/process_group/process_group.h"

namespace gradwire {

// The bytes that this rank's collectives over `group` so far have to put on a network, by the textbook algorithms that
// ProcessGroup::payload_bytes() names. Over a HybridGroup what goes between hosts: the steps between hosts of its
// collectives, and what hooks send that run there alone (make_between_hosts_hook()); not gather, scatter and
// all_to_all, which it leaves to the group of all ranks. Over any other group payload_bytes(). Thread-safe.
std::uint64_t network_payload_bytes(const ProcessGroup& group) noexcept;

}  // namespace gradwire

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How many descriptors a rank needs, and whether its process may have them. Any thread may call these functions.
#pragma once

#include <cstddef>
#include <string>

namespace gradwire::shm {

// How many descriptors the rendezvous of `size` ranks opens in the process of `rank`, at the most.
std::size_t descriptors_needed(int rank, int size) noexcept;

// Throws ResourceError that states the need and the limit, when this process has no room for `needed` more descriptors.
// Does nothing where /proc does not say how many are open.
void require_descriptors(int rank, int size, std::size_t needed);

// "this process may have 1024 descriptors open (ulimit -n); raise that limit", for messages.
std::string describe_descriptor_limit();

}  // namespace gradwire::shm

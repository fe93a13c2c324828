// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Whether a process may have the descriptors that a rank needs. Any thread may call these functions.
#pragma once

#include <cstddef>
#include <string>

namespace gradwire::internal {

// Throws ResourceError that states the need and the limit, when this process, which is `rank` of `size`, has no room
// for `needed` more descriptors. Does nothing where /proc does not say how many are open.
void require_descriptors(int rank, int size, std::size_t needed);

// "this process may have 1024 descriptors open (ulimit -n); raise that limit", for messages.
std::string describe_descriptor_limit();

}  // namespace gradwire::internal

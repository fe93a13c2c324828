// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Where the flight recorder's records lie.
#pragma once

#include <cstdint>

#include "gradwire/observe/flight_format_internal.h"

namespace gradwire::observe {

// The memory that GRADWIRE_FLIGHT_RECORDER names, else private memory; zeroed, and mapped until the end of the process.
// Null where the variable is "off". A file has one writer at a time: where another process writes, private memory.
// Throws ResourceError.
format::File* open_flight_memory();

// RANK << 32 | WORLD_SIZE of the environment; all ones where they are not set.
std::uint64_t ranks_of_environment() noexcept;

}  // namespace gradwire::observe

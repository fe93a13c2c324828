// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Where the flight recorder's records lie.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gradwire/observe/flight_format_internal.h"

namespace gradwire::observe {

// The memory that GRADWIRE_FLIGHT_RECORDER names, else private memory; zeroed, and mapped until the end of the process.
// Null where the variable is "off". A file has one writer at a time: where another process writes, private memory.
// A program that opens and closes the file itself gives the file free. Throws ResourceError.
format::File* open_flight_memory();

// Zeroes the records that an earlier process left in the file `descriptor`, of which `bytes` bytes are mapped from
// `file` on. A file of kLongFileBytes keeps the records of the last kEarlier processes behind. A reader sees the
// records of one process or none, also where this process is killed meanwhile.
void start_afresh(format::File& file, int descriptor, std::size_t bytes) noexcept;

// RANK << 32 | WORLD_SIZE of the environment; all ones where they are not set.
std::uint64_t ranks_of_environment() noexcept;
// The same of the group that tell_ranks() has told of.
std::uint64_t ranks_that_were_told() noexcept;

}  // namespace gradwire::observe

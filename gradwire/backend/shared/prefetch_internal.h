// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Cache lines for what a rank will write next.
//
// A line that another processor has read must be taken back from it before it can be written, which takes about as long
// as a small copy. Asked for at the end of a call, the lines come while this rank does something else.
#pragma once

#include <cstddef>

namespace gradwire::shared {

// Asks for the lines of [begin, begin + bytes), which no other rank reads any more, to write there. Only a hint.
void prefetch_to_write(const std::byte* begin, std::size_t bytes) noexcept;

}  // namespace gradwire::shared

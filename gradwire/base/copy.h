// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Copies of memory that may be long.
#pragma once

#include <cstddef>

namespace gradwire {

// Copies `bytes` bytes from `from` to `to`, as std::memmove; with 0 bytes the addresses may be null, and nothing moves
// where the two are the same. Thread-safe.
//
// std::memmove alone is up to 20 times slower at some addresses: glibc before 2.40 copies more than 2,112 bytes with
// `rep movsb` where the processor says that this is fast, and on AMD's Zen 3 and Zen 4 it is slow when the destination
// lies 1 to 31 bytes further into its page than the source (2 GB/s instead of 35; glibc's bug 30994). This is so
// between shared memory, which begins with a page, and a long block of malloc(), which begins 16 bytes after a page.
// Shorter copies do not use that instruction.
void copy_bytes(void* to, const void* from, std::size_t bytes) noexcept;

}  // namespace gradwire

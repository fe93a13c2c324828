// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The first write to a page of fresh memory takes several times as long as a copy into the page. A thread that nobody
// waits for does these writes.
#pragma once

#include <atomic>
#include <cstddef>

#include "gradwire/base/os_handles.h"

namespace gradwire::internal {

// Writes a zero to each page of `memory`, and ends early when `stops` becomes true.
inline void write_to_pages(const Mapping& memory, const std::atomic<bool>& stops) noexcept {
  constexpr std::size_t kPage = 4096;  // the least size of a page: larger ones are written to more often than needed
  for (std::size_t at = 0; at < memory.bytes() && !stops; at += kPage) memory.data()[at] = std::byte{0};
}

}  // namespace gradwire::internal

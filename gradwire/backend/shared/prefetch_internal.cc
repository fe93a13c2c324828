// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/shared/prefetch_internal.h"

namespace gradwire::shared {

// Where the compiler may not use the instruction, it asks for lines to read, which does not take them from anybody.
// Processors that lack the instruction pass over it (Intel's manual, "PREFETCHW").
#if defined(__x86_64__)
__attribute__((target("prfchw")))
#endif
void prefetch_to_write(const std::byte* begin, std::size_t bytes) noexcept {
  constexpr std::size_t kLine = 64;
  for (std::size_t i = 0; i < bytes; i += kLine) __builtin_prefetch(begin + i, 1);
}

}  // namespace gradwire::shared

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Cuts a copy into an unaligned head, where stores bypass the cache, what the vector loop does, and the rest.
#include "gradwire/kernels/copy.h"

#include <cstdint>

#include "gradwire/base/copy.h"
#include "gradwire/kernels/dispatch_internal.h"

namespace gradwire::kernels {

namespace {

// Measured in docs/decisions/0039.
constexpr std::size_t kFew = std::size_t{2} << 20;
constexpr std::size_t kMany = std::size_t{16} << 20;

}  // namespace

void copy_from_peer(void* to, const void* from, std::size_t bytes, std::size_t result_bytes, Store allowed) noexcept {
  if (to == from) return;
  std::size_t done = 0;
  const bool streamed = result_bytes >= kMany && allowed == Store::streamed;
  if (bytes >= kCopyFrom && (streamed || result_bytes <= kFew)) {
    const auto misaligned = reinterpret_cast<std::uintptr_t>(to) % kStreamAlignment;
    if (streamed) done = (kStreamAlignment - misaligned) % kStreamAlignment;
    copy_bytes(to, from, done);
    done = active().copy(to, from, done, bytes, streamed);
  }
  copy_bytes(static_cast<std::byte*>(to) + done, static_cast<const std::byte*>(from) + done, bytes - done);
}

std::size_t copy_scalar(void*, const void*, std::size_t begin, std::size_t, bool) noexcept { return begin; }

}  // namespace gradwire::kernels

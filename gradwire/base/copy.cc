// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/base/copy.h"

#include <cstdint>
#include <cstring>

namespace gradwire {
namespace {

constexpr std::size_t kBlock = 2048;
constexpr std::uintptr_t kPage = 4096;
constexpr std::uintptr_t kSlowBelow = 32;

}  // namespace

void copy_bytes(void* to, const void* from, std::size_t bytes) noexcept {
  if (bytes == 0 || to == from) return;
  auto* destination = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  const std::uintptr_t ahead = reinterpret_cast<std::uintptr_t>(to) - reinterpret_cast<std::uintptr_t>(from);
  const bool overlap = ahead < bytes || 0 - ahead < bytes;
  if (!overlap && ahead % kPage != 0 && ahead % kPage < kSlowBelow) {
    for (; bytes > kBlock; bytes -= kBlock, destination += kBlock, source += kBlock) {
      std::memcpy(destination, source, kBlock);
    }
  }
  std::memmove(destination, source, bytes);
}

}  // namespace gradwire

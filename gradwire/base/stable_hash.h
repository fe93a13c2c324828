// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A hash that ranks may compare: the same in every process, build and version.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace gradwire {
namespace internal {

inline constexpr std::uint64_t kFnvBasis = 0xcbf29ce484222325U;

constexpr std::uint64_t fnv_step(std::uint64_t hash, std::uint64_t word) noexcept {
  return (hash ^ word) * 0x100000001b3U;
}

}  // namespace internal

// FNV-1a over the bytes of `text`, 64 bits. Not against an adversary: whoever chooses the text can choose the hash.
// Thread-safe.
constexpr std::uint64_t stable_hash(std::string_view text) noexcept {
  std::uint64_t hash = internal::kFnvBasis;
  for (const char c : text) hash = internal::fnv_step(hash, static_cast<unsigned char>(c));
  return hash;
}

// FNV-1a that takes each of `numbers` as one word of 64 bits, so not the hash of their bytes. Thread-safe.
constexpr std::uint64_t stable_hash(std::span<const std::int64_t> numbers) noexcept {
  std::uint64_t hash = internal::kFnvBasis;
  for (const std::int64_t number : numbers) hash = internal::fnv_step(hash, static_cast<std::uint64_t>(number));
  return hash;
}

}  // namespace gradwire

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A hash that ranks may compare: the same in every process, build and version.
#pragma once

#include <cstdint>
#include <string_view>

namespace gradwire {

// FNV-1a over the bytes of `text`, 64 bits. Not against an adversary: whoever chooses the text can choose the hash.
// Thread-safe.
constexpr std::uint64_t stable_hash(std::string_view text) noexcept {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return hash;
}

}  // namespace gradwire

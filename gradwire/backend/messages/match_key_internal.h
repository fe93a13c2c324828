// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// By what messages and receives find each other: the peer and the tag.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gradwire::messages {

// Where the peer and the tag belong among `places`, a power of two. `peer` may be kAnySource. Peers and tags that
// follow each other spread over all places.
inline std::size_t match_place(int peer, std::uint32_t tag, std::size_t places) noexcept {
  const std::uint64_t key = (static_cast<std::uint64_t>(static_cast<std::uint32_t>(peer)) << 32) | tag;
  return static_cast<std::size_t>((key * 0x9e37'79b9'7f4a'7c15U) >> 32) & (places - 1);
}

}  // namespace gradwire::messages

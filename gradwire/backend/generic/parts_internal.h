// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How a buffer is divided among ranks, and a rank's part into chunks.
#pragma once

#include <algorithm>
#include <cstddef>

#include "gradwire/backend/backend.h"

namespace gradwire::generic {

// Elements [begin, begin + count) of a buffer.
struct Part {
  std::size_t begin = 0;
  std::size_t count = 0;
};

// The part of `rank` when `ranks` divide `count` elements: in rank order, lengths differ by one at most.
inline Part part_of(std::size_t count, int ranks, int rank) noexcept {
  const auto n = static_cast<std::size_t>(ranks);
  const auto r = static_cast<std::size_t>(rank);
  const std::size_t base = count / n;
  const std::size_t rest = count % n;
  return {r * base + std::min(r, rest), base + (r < rest ? 1 : 0)};
}

// The chunk `index` of a part, which may be empty.
inline Part chunk_of(Part part, std::size_t index, std::size_t chunk) noexcept {
  const std::size_t skipped = std::min(part.count, index * chunk);
  return {part.begin + skipped, std::min(chunk, part.count - skipped)};
}

// Elements in a chunk such that one chunk from every other rank fits into `staging` bytes; at least one.
inline std::size_t chunk_elements(std::size_t staging, int ranks, std::size_t element) noexcept {
  const auto others = static_cast<std::size_t>(std::max(1, ranks - 1));
  return std::max<std::size_t>(1, staging / others / element);
}

// The chunks of a direct reduction (GenericChannel::reduce_chunks()) in which a rank combines at most `longest`
// elements of `element` bytes. Short enough that there are several to overlap, long enough that a message's cost does
// not count.
inline std::size_t reduction_chunk(std::size_t longest, std::size_t staging, int ranks, std::size_t element) noexcept {
  constexpr std::size_t kLongestBytes = std::size_t{512} << 10;
  return std::min(
      {longest, chunk_elements(staging / 2, ranks, element), std::max<std::size_t>(1, kLongestBytes / element)});
}

}  // namespace gradwire::generic

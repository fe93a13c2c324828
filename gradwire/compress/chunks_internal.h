// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The chunks into which the compressed all-reduce cuts values.
#pragma once

#include <algorithm>
#include <cstddef>

#include "gradwire/compress/exchange_internal.h"

namespace gradwire::compress {

// A block of a chunk.
struct ChunkBlock : Block {
  int chunk = 0;
  std::size_t first = 0;  // the number of the block's first value within the chunk
};

// A row of values, cut into one chunk for each rank as chunk_begin() says. Each chunk is worked on from block to block.
class Chunks final {
 public:
  // Cuts `count` values. The blocks are those of `codec` (for_blocks()), which must outlive this object.
  Chunks(const Codec& codec, std::size_t count, int ranks) noexcept
      : codec_(codec), count_(count), ranks_(ranks), longest_(chunk_begin(count, ranks, 1)) {}

  int ranks() const noexcept { return ranks_; }
  // The first value of chunk r, of all values.
  std::size_t begin(int r) const noexcept { return std::min(count_, static_cast<std::size_t>(r) * longest_); }
  std::size_t length(int r) const noexcept { return begin(r + 1) - begin(r); }
  // The length of the longest chunk.
  std::size_t longest() const noexcept { return longest_; }

  // Calls body(block) for each ChunkBlock of chunk r, as for_blocks() does.
  template <class Body>
  void for_blocks_of(int r, const Body& body) const {
    const std::size_t start = begin(r);
    for_blocks(codec_, length(r), [&](std::size_t first, std::size_t length) {
      body(ChunkBlock{{start + first, length}, r, first});
    });
  }
  // The same for all chunks, in the order of the ranks.
  template <class Body>
  void for_all_blocks(const Body& body) const {
    for (int r = 0; r < ranks_; ++r) for_blocks_of(r, body);
  }

 private:
  const Codec& codec_;
  std::size_t count_;
  int ranks_;
  std::size_t longest_;
};

}  // namespace gradwire::compress

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The sum of all ranks' values in a chunk, at the chunk's owner.
#pragma once

#include <cstddef>
#include <span>

#include "gradwire/compress/chunks_internal.h"
#include "gradwire/compress/exchange_internal.h"

namespace gradwire::compress {

// Adds block by block. Uses `sum`, `decoded` and `delivered` of the workspace, which must outlive this object.
class ChunkSum final {
 public:
  // `length`: the values of the chunk. `keeps`: the sum of the whole chunk stays until delivered(); else only the sum
  // of one block does.
  ChunkSum(std::size_t length, int ranks, float divisor, bool keeps, Workspace& workspace) noexcept
      : length_(length), ranks_(ranks), divisor_(divisor), keeps_(keeps), workspace_(workspace) {}

  // Adds what part(rank, room) returns for each of the ranks, in their order, and returns the mean of the block. `room`
  // is as long as the block; the part may lie there or elsewhere. The mean stays until the next use of `decoded`.
  template <class Part>
  std::span<const float> mean(const ChunkBlock& block, const Part& part) {
    const auto sum =
        room_in(workspace_.sum, keeps_ ? length_ : block.length).subspan(keeps_ ? block.first : 0, block.length);
    add_ranks(ranks_, room_in(workspace_.decoded, block.length), part, sum);
    const auto mean = room_in(workspace_.decoded, block.length);
    divide(sum, divisor_, mean);
    return mean;
  }

  // What was delivered of the owner's values in a block: of `own`, its part of the sum, when `mean` is what all ranks
  // decode. What the encoding of the mean lost of all ranks' values is the owner's to deliver later. Needs `keeps`.
  std::span<const float> delivered(const ChunkBlock& block, std::span<const float> own, std::span<const float> mean) {
    const auto room = room_in(workspace_.delivered, block.length);
    const auto sum = std::span<const float>(workspace_.sum).subspan(block.first, block.length);
    for (std::size_t i = 0; i < mean.size(); ++i) room[i] = own[i] - (sum[i] - divisor_ * mean[i]);
    return room;
  }

 private:
  const std::size_t length_;
  const int ranks_;
  const float divisor_;
  const bool keeps_;
  Workspace& workspace_;
};

}  // namespace gradwire::compress

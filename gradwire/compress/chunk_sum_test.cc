// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The sum at the owner of a chunk, and what the owner owes.
#include "gradwire/compress/chunk_sum_internal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace gradwire::compress::chunk_sum_test {
namespace {

using Floats = std::vector<float>;

const std::vector<Floats> kParts{{1, 2, 3, 4, 5}, {10, 20, 30, 40, 50}, {100, 200, 300, 400, 500}};
const std::vector<ChunkBlock> kBlocks{{{40, 2}, 2, 0}, {{42, 3}, 2, 2}};

// The mean of a block. The part of rank `lies` lies elsewhere, those of the others in the room they get.
Floats mean_of(ChunkSum& sum, const ChunkBlock& block, int lies) {
  const auto mean = sum.mean(block, [&](int r, std::span<float> room) -> std::span<const float> {
    const auto part = std::span<const float>(kParts[static_cast<std::size_t>(r)]).subspan(block.first, block.length);
    EXPECT_EQ(room.size(), block.length);
    if (r == lies) return part;
    std::copy(part.begin(), part.end(), room.begin());
    return room;
  });
  return {mean.begin(), mean.end()};
}

TEST(ChunkSum, IsDividedBlockByBlock) {
  for (const bool keeps : {false, true}) {
    for (const int lies : {0, 1, 2}) {
      Workspace workspace;
      ChunkSum sum(5, 3, 2, keeps, workspace);
      EXPECT_EQ(mean_of(sum, kBlocks[0], lies), (Floats{55.5f, 111}));
      EXPECT_EQ(mean_of(sum, kBlocks[1], lies), (Floats{166.5f, 222, 277.5f}));
      EXPECT_EQ(workspace.sum.size(), keeps ? 5U : 3U);
    }
  }
}

// One rank's part, and a divisor of another kind.
TEST(ChunkSum, OfOneRankIsThatRanksPart) {
  Workspace workspace;
  ChunkSum sum(5, 1, 1, false, workspace);
  EXPECT_EQ(mean_of(sum, kBlocks[1], 0), (Floats{3, 4, 5}));
}

// divisor * mean = what the other ranks' parts delivered + what the owner delivered.
TEST(ChunkSum, TheOwnerDeliversWhatTheEncodingOfTheMeanLost) {
  Workspace workspace;
  const float divisor = 4;
  ChunkSum sum(5, 3, divisor, /*keeps=*/true, workspace);
  for (const ChunkBlock& block : kBlocks) mean_of(sum, block, 1);
  for (const ChunkBlock& block : kBlocks) {
    const auto own = std::span<const float>(kParts[1]).subspan(block.first, block.length);
    const Floats mean(block.length, 64);
    const auto delivered = sum.delivered(block, own, mean);
    ASSERT_EQ(delivered.size(), block.length);
    for (std::size_t i = 0; i < block.length; ++i) {
      const float others = kParts[0][block.first + i] + kParts[2][block.first + i];
      EXPECT_EQ(divisor * mean[i], others + delivered[i]);
    }
  }
}

}  // namespace
}  // namespace gradwire::compress::chunk_sum_test

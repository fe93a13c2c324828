// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How chunks are cut into blocks, and the keys of their encodings.
#include "gradwire/compress/chunks_internal.h"

#include <gtest/gtest.h>

#include <set>
#include <tuple>
#include <vector>

#include "gradwire/compress/chunk_keys_internal.h"
#include "gradwire/compress/registry.h"

namespace gradwire::compress::chunks_test {
namespace {

const std::vector<std::size_t> kCounts{0, 1, 15, 16, 17, 100, 1000, 8192, 40'001};
const std::vector<int> kRanks{1, 2, 3, 5, 8};

TEST(ChunksOfValues, BeginWhereTheExchangeSays) {
  const auto codec = make_codec("int8:block=64");
  for (const std::size_t count : kCounts) {
    for (const int ranks : kRanks) {
      const Chunks chunks(*codec, count, ranks);
      for (int r = 0; r <= ranks; ++r) EXPECT_EQ(chunks.begin(r), chunk_begin(count, ranks, r)) << count << ", " << r;
      for (int r = 0; r < ranks; ++r) {
        EXPECT_EQ(chunks.length(r), chunk_begin(count, ranks, r + 1) - chunk_begin(count, ranks, r));
        EXPECT_LE(chunks.length(r), chunks.longest());
      }
      EXPECT_EQ(chunks.length(0), chunks.longest());
    }
  }
}

TEST(ChunksOfValues, BlocksAreTheValuesInOrder) {
  for (const char* name : {"int8:block=64", "top_k"}) {
    const auto codec = make_codec(name);
    for (const std::size_t count : kCounts) {
      for (const int ranks : kRanks) {
        const Chunks chunks(*codec, count, ranks);
        std::size_t next = 0;
        std::vector<std::size_t> blocks(static_cast<std::size_t>(ranks));
        chunks.for_all_blocks([&](const ChunkBlock& block) {
          EXPECT_EQ(block.begin, next);
          EXPECT_EQ(block.begin, chunks.begin(block.chunk) + block.first);
          EXPECT_LE(block.first + block.length, chunks.length(block.chunk));
          if (codec->block() != 0) {
            EXPECT_EQ(block.first % codec->block(), 0U);
          }
          next += block.length;
          ++blocks[static_cast<std::size_t>(block.chunk)];
        });
        EXPECT_EQ(next, count);
        for (int r = 0; r < ranks; ++r) {
          EXPECT_GE(blocks[static_cast<std::size_t>(r)], 1U) << "an empty chunk has one block too";
          if (codec->block() == 0) {
            EXPECT_EQ(blocks[static_cast<std::size_t>(r)], 1U);
          }
        }
      }
    }
  }
}

TEST(ChunksOfValues, LongChunksHaveSeveralBlocks) {
  const auto codec = make_codec("int8:block=64");
  int blocks = 0;
  Chunks(*codec, 40'000, 2).for_blocks_of(1, [&](const ChunkBlock& block) {
    EXPECT_EQ(block.chunk, 1);
    ++blocks;
  });
  EXPECT_EQ(blocks, 3);
}

TEST(KeysOfChunks, DifferForEachEncodingOfAStep) {
  const int ranks = 4;
  std::set<std::tuple<std::uint64_t, std::uint32_t, std::uint32_t>> seen;
  std::size_t made = 0;
  const auto expect_new = [&](const EncodeKey& key) {
    EXPECT_EQ(key.seed, 5U);
    EXPECT_EQ(key.step, 9U);
    seen.insert({key.tensor, key.rank, key.piece});
    ++made;
  };
  for (const std::uint64_t tensor : {6, 7}) {
    for (const std::uint32_t piece : {0, 1}) {
      const ChunkKeys keys({5, tensor, 9, /*rank=*/77, piece}, ranks);
      for (int chunk = 0; chunk < ranks; ++chunk) {
        for (int sender = 0; sender < ranks; ++sender) expect_new(keys.of_values(chunk, sender));
        expect_new(keys.of_mean(chunk));
      }
    }
  }
  EXPECT_EQ(seen.size(), made);
}

// Both encodings of a chunk are of one tensor, so a codec that does not look at the rank takes the same places.
TEST(KeysOfChunks, AreThoseOfTheFormat) {
  const ChunkKeys keys({5, 3, 2, 0}, 4);
  EXPECT_EQ(keys.step(), 2U);
  EXPECT_EQ(keys.of_values(1, 2).tensor, 3U * 4U + 1U);
  EXPECT_EQ(keys.of_values(1, 2).rank, 2U);
  EXPECT_EQ(keys.of_mean(1).tensor, 3U * 4U + 1U);
  EXPECT_EQ(keys.of_mean(1).rank, 4U + 1U);
}

}  // namespace
}  // namespace gradwire::compress::chunks_test

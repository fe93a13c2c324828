// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Proves: the values are those that FNV-1a publishes, so that two builds agree; numbers are hashed word by word; other
// bits have another hash, also where words differ in the same bits.
#include "gradwire/base/stable_hash.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <set>
#include <span>
#include <vector>

namespace gradwire::stable_hash_test {
namespace {

TEST(StableHash, GivesThePublishedValues) {
  EXPECT_EQ(stable_hash(""), 0xcbf29ce484222325U);
  EXPECT_EQ(stable_hash("a"), 0xaf63dc4c8601ec8cU);
  EXPECT_EQ(stable_hash("foobar"), 0x85944171f73967e8U);
  EXPECT_EQ(stable_hash(std::string_view("\xff\0", 2)), 0x0a99a607b6f60beaU) << "bytes are unsigned, and zero counts";
}

TEST(StableHash, TakesANumberAsOneWord) {
  using Numbers = std::vector<std::int64_t>;
  EXPECT_EQ(stable_hash(Numbers{}), 0xcbf29ce484222325U);
  EXPECT_EQ(stable_hash(Numbers{'a'}), 0xaf63dc4c8601ec8cU) << "of a number that is a byte, the byte's";
  EXPECT_EQ(stable_hash(Numbers{-1}), 0x509c41b379fe466eU);  // (basis ^ (2^64 - 1)) * prime modulo 2^64
  EXPECT_NE(stable_hash(Numbers{1, 2}), stable_hash(Numbers{2, 1}));
  EXPECT_NE(stable_hash(Numbers{0}), stable_hash(Numbers{0, 0}));
}

std::uint64_t hash_of_words(const std::vector<std::uint64_t>& words) {
  return stable_hash_of_bits(std::as_bytes(std::span(words)));
}

// In each pair of words the same bit, and the highest bits of the two floats in a word.
TEST(StableHash, TwoDifferencesOfBitsDoNotCancelEachOther) {
  constexpr std::size_t kWords = 9;
  std::mt19937_64 draw(1);
  std::vector<std::uint64_t> drawn(kWords);
  for (std::uint64_t& word : drawn) word = draw();
  for (const std::vector<std::uint64_t>& words : {drawn, std::vector<std::uint64_t>(kWords, 0)}) {
    std::set<std::uint64_t> hashes{hash_of_words(words)};
    std::size_t different = 1;
    const auto flip = [&](std::size_t one, std::uint64_t bits, std::size_t other, std::uint64_t other_bits) {
      std::vector<std::uint64_t> flipped = words;
      flipped[one] ^= bits;
      flipped[other] ^= other_bits;
      hashes.insert(hash_of_words(flipped));
      ++different;
    };
    constexpr std::uint64_t kSigns[] = {std::uint64_t{1} << 63, std::uint64_t{1} << 31,
                                        std::uint64_t{1} << 63 | std::uint64_t{1} << 31};
    for (std::size_t one = 0; one < kWords; ++one) {
      for (int bit = 0; bit < 64; ++bit) flip(one, std::uint64_t{1} << bit, one, 0);
      flip(one, kSigns[2], one, 0);
      for (std::size_t other = 0; other < one; ++other) {
        for (int bit = 0; bit < 64; ++bit) {
          if (bit != 31 && bit != 63) flip(one, std::uint64_t{1} << bit, other, std::uint64_t{1} << bit);
        }
        for (const std::uint64_t bits : kSigns) {
          for (const std::uint64_t other_bits : kSigns) flip(one, bits, other, other_bits);
        }
      }
    }
    EXPECT_EQ(hashes.size(), different);
  }
}

TEST(StableHash, BitsThatEndWithinAWordCountAndSoDoesTheirNumber) {
  const std::vector<std::byte> zeros(40);
  std::set<std::uint64_t> hashes;
  for (std::size_t size = 0; size <= zeros.size(); ++size) hashes.insert(stable_hash_of_bits({zeros.data(), size}));
  EXPECT_EQ(hashes.size(), zeros.size() + 1);
  for (std::size_t at = 0; at < 13; ++at) {
    std::vector<std::byte> other(13);
    other[at] = std::byte{128};
    hashes.insert(stable_hash_of_bits(other));
  }
  EXPECT_EQ(hashes.size(), zeros.size() + 1 + 13);
  EXPECT_EQ(stable_hash_of_bits(std::span<const std::byte>{}), stable_hash_of_bits({zeros.data(), 0}));
}

}  // namespace
}  // namespace gradwire::stable_hash_test

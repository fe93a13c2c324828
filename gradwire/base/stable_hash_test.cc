// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Proves: the values are those that FNV-1a publishes, so that two builds agree; numbers are hashed word by word.
#include "gradwire/base/stable_hash.h"

#include <gtest/gtest.h>

#include <cstdint>
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

}  // namespace
}  // namespace gradwire::stable_hash_test

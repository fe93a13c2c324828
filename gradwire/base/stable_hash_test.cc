// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Proves: the values are those that FNV-1a publishes, so that two builds agree.
#include "gradwire/base/stable_hash.h"

#include <gtest/gtest.h>

namespace gradwire {
namespace {

TEST(StableHash, GivesThePublishedValues) {
  EXPECT_EQ(stable_hash(""), 0xcbf29ce484222325U);
  EXPECT_EQ(stable_hash("a"), 0xaf63dc4c8601ec8cU);
  EXPECT_EQ(stable_hash("foobar"), 0x85944171f73967e8U);
  EXPECT_EQ(stable_hash(std::string_view("\xff\0", 2)), 0x0a99a607b6f60beaU) << "bytes are unsigned, and zero counts";
}

}  // namespace
}  // namespace gradwire

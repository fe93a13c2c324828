// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/base/nearest.h"

#include <gtest/gtest.h>

#include <vector>

namespace gradwire::nearest_test {
namespace {

TEST(Nearest, TheDistanceCountsChangesOfLetters) {
  EXPECT_EQ(edit_distance("", ""), 0U);
  EXPECT_EQ(edit_distance("", "abc"), 3U);
  EXPECT_EQ(edit_distance("abc", ""), 3U);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3U);
  EXPECT_EQ(edit_distance("gloo", "golo"), 1U) << "two letters that changed places";
  EXPECT_EQ(edit_distance("PowerSGD", "power-sgd"), 1U);
  EXPECT_EQ(edit_distance("--nproc_per_node", "--NPROC-PER-NODE"), 0U);
}

TEST(Nearest, TheDistanceIsOneOfAMetric) {
  const std::vector<std::string> words = {"", "a", "ab", "ba", "abc", "acb", "shm", "gloo", "hybrid"};
  for (const auto& a : words) {
    for (const auto& b : words) {
      EXPECT_EQ(edit_distance(a, b), edit_distance(b, a)) << a << " " << b;
      EXPECT_EQ(edit_distance(a, b) == 0, a == b) << a << " " << b;
    }
  }
}

TEST(Nearest, ANameThatIsNearIsOffered) {
  const std::vector<std::string> known = {"int8", "int4", "power_sgd", "top_k", "x"};
  EXPECT_EQ(did_you_mean("int9", known), "; did you mean 'int8'?") << "the first of several";
  EXPECT_EQ(did_you_mean("powersgd", known), "; did you mean 'power_sgd'?");
  EXPECT_EQ(did_you_mean("topk", known), "; did you mean 'top_k'?");
  EXPECT_EQ(did_you_mean("something else", known), "");
  EXPECT_EQ(did_you_mean("y", known), "") << "one letter of one differs";
  EXPECT_EQ(did_you_mean("", known), "");
  EXPECT_EQ(did_you_mean("int8", {}), "");
}

}  // namespace
}  // namespace gradwire::nearest_test

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Which ranks are slow, from times alone.
#include "gradwire/membership/slow_ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "gradwire/base/error.h"

namespace gradwire::membership::slow_ranks_test {
namespace {

using Times = std::vector<std::int64_t>;

constexpr SlowRule kRule{.factor = 2, .steps = 5, .least = Milliseconds(1)};

// The ranks that become slow while `times` are those of each of `steps` steps, and the steps in which they do.
std::vector<SlowRank> found_in(SlowRanks& ranks, const Times& times, int steps, std::int64_t first = 0) {
  std::vector<SlowRank> all;
  for (int i = 0; i < steps; ++i) {
    for (const SlowRank& found : ranks.add(first + i, times)) all.push_back(found);
  }
  return all;
}

TEST(SlowRanksTest, ARankThatIsSlowInEnoughStepsInARowIsFoundOnceWithItsTimes) {
  SlowRanks ranks(kRule, 4);
  EXPECT_TRUE(found_in(ranks, {10000, 11000, 33000, 12000}, 4).empty());
  const auto found = found_in(ranks, {10000, 11000, 38000, 12000}, 20, 4);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found.front(), (SlowRank{.rank = 2, .step = 4, .own_us = 34000, .others_us = 11000}));
}

TEST(SlowRanksTest, OneStepThatIsNotSlowBeginsTheCountAnew) {
  SlowRanks ranks(kRule, 2);
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(found_in(ranks, {10000, 30000}, 4).empty());
    EXPECT_TRUE(found_in(ranks, {10000, 20000}, 1).empty()) << "exactly the factor is not more than the factor";
  }
  EXPECT_EQ(found_in(ranks, {10000, 30000}, 5).size(), 1U);
  found_in(ranks, {10000, 10000}, 1);
  EXPECT_EQ(found_in(ranks, {10000, 30000}, 5).size(), 1U) << "slow again after it was not";
}

TEST(SlowRanksTest, ADifferenceBelowTheLeastIsNobodysTrouble) {
  SlowRanks ranks(kRule, 2);
  EXPECT_TRUE(found_in(ranks, {100, 1099}, 50).empty());
  EXPECT_EQ(found_in(ranks, {100, 1100}, 50).size(), 1U);
}

// With half of the others as slow, the fast ones are the exception.
TEST(SlowRanksTest, TheMedianOfTheOthersDecides) {
  const auto ranks_found = [](const Times& times) {
    SlowRanks ranks(kRule, static_cast<int>(times.size()));
    std::vector<int> numbers;
    for (const SlowRank& found : found_in(ranks, times, 5)) numbers.push_back(found.rank);
    return numbers;
  };
  EXPECT_EQ(ranks_found({30000}), std::vector<int>{}) << "a rank alone";
  EXPECT_EQ(ranks_found({30000, 10000}), std::vector<int>{0});
  EXPECT_EQ(ranks_found({30000, 10000, 30000}), std::vector<int>{});
  EXPECT_EQ(ranks_found({30000, 10000, 30000, 10000}), (std::vector<int>{0, 2}));
  EXPECT_EQ(ranks_found({30000, 30000, 30000, 10000}), std::vector<int>{});
  EXPECT_EQ(ranks_found({0, 10000}), std::vector<int>{1}) << "a rank that computes nothing";
}

// Each rank takes up to 2.9 times its shortest step, now and then a hundred times: no rank is slow in a row.
TEST(SlowRanksTest, NoisyRanksRaiseNoAlarm) {
  SlowRanks ranks({.factor = 3, .steps = 20, .least = Milliseconds(0)}, 8);
  std::mt19937 random(5);
  for (std::int64_t step = 0; step < 20000; ++step) {
    Times times(8);
    for (std::int64_t& time : times)
      time = 10000 + static_cast<std::int64_t>(random() % 19000) + (random() % 50 == 0 ? 1000000 : 0);
    EXPECT_TRUE(ranks.add(step, times).empty()) << step;
  }
}

TEST(SlowRanksTest, ARuleAsText) {
  const SlowRule rule{.factor = 2.1, .steps = 7, .least = Milliseconds(3), .drop = true};
  EXPECT_EQ(slow_rule_of(to_text(rule)), rule);
  EXPECT_THROW(slow_rule_of("no rule"), StoreError);
}

TEST(SlowRanksTest, ARuleThatMakesNoSenseIsRefused) {
  EXPECT_NO_THROW(require_valid(SlowRule()));
  for (const double factor : {1.0, 0.0, -2.0, std::nan(""), std::numeric_limits<double>::infinity()})
    EXPECT_THROW(require_valid({.factor = factor}), InvalidArgument) << factor;
  EXPECT_THROW(require_valid({.steps = 0}), InvalidArgument);
  EXPECT_THROW(require_valid({.least = Milliseconds(-1)}), InvalidArgument);
  EXPECT_THROW(SlowRanks({.factor = 1}, 2), InvalidArgument);
}

}  // namespace
}  // namespace gradwire::membership::slow_ranks_test

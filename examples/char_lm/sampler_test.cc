// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "examples/char_lm/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace char_lm::sampler_test {
namespace {

constexpr std::size_t kLength = 500;
constexpr int kContext = 16;
constexpr int kBatch = 24;

std::vector<std::size_t> step_of_all_ranks(std::uint64_t seed, std::int64_t step, int world) {
  std::vector<std::size_t> all;
  for (int rank = 0; rank < world; ++rank) {
    const auto share = Sampler(seed, kLength, kContext, kBatch, rank, world).train(step);
    EXPECT_EQ(share.size(), static_cast<std::size_t>(kBatch / world));
    all.insert(all.end(), share.begin(), share.end());
  }
  return all;
}

// The ranks' shares, laid end to end, are the batch of one rank: whatever the world size, a step takes the same
// samples.
TEST(Sampler, StepTakesTheSameSamplesOnAnyNumberOfRanks) {
  for (const std::int64_t step : {0, 1, 99, 1'000'000}) {
    const auto alone = step_of_all_ranks(7, step, 1);
    for (const int world : {2, 3, 4, 8, 24}) {
      EXPECT_EQ(step_of_all_ranks(7, step, world), alone) << "step " << step << " on " << world << " ranks";
    }
  }
}

// A resumed run builds a new sampler and asks for step k first.
TEST(Sampler, StepDoesNotDependOnTheStepsAskedForBefore) {
  const Sampler used(3, kLength, kContext, kBatch, 0, 1);
  for (std::int64_t step = 0; step < 50; ++step) {
    (void)used.train(step);
  }
  EXPECT_EQ(used.train(50), Sampler(3, kLength, kContext, kBatch, 0, 1).train(50));
}

TEST(Sampler, SeedsAndStepsDiffer) {
  EXPECT_NE(step_of_all_ranks(1, 5, 1), step_of_all_ranks(2, 5, 1));
  EXPECT_NE(step_of_all_ranks(1, 5, 1), step_of_all_ranks(1, 6, 1));
}

// Every place at which a whole sample fits is taken sooner or later, and no other.
TEST(Sampler, CoversTheWholeText) {
  const Sampler sampler(11, kLength, kContext, kBatch, 0, 1);
  std::set<std::size_t> seen;
  for (std::int64_t step = 0; step < 1000; ++step) {
    for (const std::size_t start : sampler.train(step)) {
      seen.insert(start);
    }
  }
  EXPECT_EQ(seen.size(), kLength - kContext);
  EXPECT_EQ(*seen.begin(), 0U);
  EXPECT_EQ(*seen.rbegin() + kContext + 1, kLength);
}

TEST(Sampler, TextOfJustOneSampleIsTakenWhole) {
  const Sampler sampler(1, kContext + 1, kContext, 2, 0, 1);
  EXPECT_EQ(sampler.train(0), (std::vector<std::size_t>{0, 0}));
  EXPECT_EQ(sampler.held_out(0, 1, kContext + 1), (std::vector<std::size_t>{0, 0}));
}

TEST(Sampler, HeldOutWindowsSpanTheTextAndDoNotDependOnTheWorld) {
  constexpr int kBatches = 3;
  const auto windows = [](int world) {
    std::vector<std::size_t> all;
    for (int batch = 0; batch < kBatches; ++batch) {
      for (int rank = 0; rank < world; ++rank) {
        const auto share = Sampler(1, kLength, kContext, kBatch, rank, world).held_out(batch, kBatches, kLength);
        all.insert(all.end(), share.begin(), share.end());
      }
    }
    return all;
  };
  const auto alone = windows(1);
  EXPECT_EQ(alone.size(), static_cast<std::size_t>(kBatch * kBatches));
  EXPECT_EQ(alone.front(), 0U);
  EXPECT_EQ(alone.back() + kContext + 1, kLength);
  EXPECT_TRUE(std::is_sorted(alone.begin(), alone.end()));
  EXPECT_EQ(windows(2), alone);
  EXPECT_EQ(windows(8), alone);
}

// The mean of n draws from [0, 1) lies within six of its standard deviations of 1/2.
TEST(MixUnit, IsUniformEnough) {
  constexpr int kDraws = 10'000;
  double sum = 0;
  for (std::uint64_t i = 0; i < kDraws; ++i) {
    const double u = mix_unit(5, 1, i);
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
  }
  EXPECT_NEAR(sum / kDraws, 0.5, 6 * 0.2887 / 100);
}

}  // namespace
}  // namespace char_lm::sampler_test

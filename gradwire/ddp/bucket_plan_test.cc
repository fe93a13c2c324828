// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/bucket_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <utility>

#include "gradwire/base/error.h"

namespace gradwire {
namespace {

std::vector<TensorSpec> tensors_of(const std::vector<std::size_t>& bytes) {
  std::vector<TensorSpec> tensors;
  for (std::size_t i = 0; i < bytes.size(); ++i) tensors.push_back({.index = i, .bytes = bytes[i]});
  return tensors;
}

TEST(BucketPlan, DefaultCapsAreOneAndTwentyFiveMebibytes) {
  EXPECT_EQ(bucket_caps(), (BucketCaps{1u << 20, 25u << 20}));
}

TEST(BucketPlan, AnExplicitCapHoldsForTheFirstBucketToo) {
  const auto tensors = tensors_of({10, 10, 10, 10, 10});
  EXPECT_EQ(bucket_caps(20), (BucketCaps{20}));
  EXPECT_EQ(plan_buckets(tensors, bucket_caps(20)), (BucketPlan{{0, 1}, {2, 3}, {4}}));
}

TEST(BucketPlan, ABucketClosesAfterTheTensorThatReachesItsCap) {
  // 9 is below the cap of 10, so the tensor of 100 still joins; then the later cap of 25 holds.
  EXPECT_EQ(plan_buckets(tensors_of({9, 100, 24, 1, 25, 3}), {10, 25}), (BucketPlan{{0, 1}, {2, 3}, {4}, {5}}));
}

TEST(BucketPlan, CapsAdvancePerDtypeAndDevice) {
  std::vector<TensorSpec> tensors;
  for (std::size_t i = 0; i < 8; ++i) {
    tensors.push_back({.index = i, .bytes = 10, .dtype = static_cast<std::int32_t>(i % 2)});
  }
  // Each dtype has a first bucket of one tensor and then buckets of two.
  EXPECT_EQ(plan_buckets(tensors, {10, 20}), (BucketPlan{{0}, {1}, {2, 4}, {3, 5}, {6}, {7}}));
  for (auto& tensor : tensors) tensor.device = std::exchange(tensor.dtype, 0);
  EXPECT_EQ(plan_buckets(tensors, {10, 20}), (BucketPlan{{0}, {1}, {2, 4}, {3, 5}, {6}, {7}}));
}

TEST(BucketPlan, ASparseTensorIsAloneAndDoesNotCloseOthers) {
  auto tensors = tensors_of({10, 10, 10});
  tensors[1].sparse = true;
  EXPECT_EQ(plan_buckets(tensors, {1000}), (BucketPlan{{1}, {0, 2}}));
}

TEST(BucketPlan, BucketsComeInTheOrderInWhichTheyFillUp) {
  // The bucket of dtype 1 is never full, but its last tensor comes before the last of dtype 0.
  std::vector<TensorSpec> tensors{{0, 10, 0, 0}, {1, 10, 1, 0}, {2, 10, 0, 0}, {3, 10, 1, 0}, {4, 10, 0, 0}};
  EXPECT_EQ(plan_buckets(tensors, {1000}), (BucketPlan{{1, 3}, {0, 2, 4}}));
}

TEST(BucketPlan, TheInitialPlanGoesThroughTheParametersInReverse) {
  EXPECT_EQ(plan_initial_buckets(tensors_of({10, 10, 10, 10, 10}), {20}), (BucketPlan{{4}, {2, 3}, {0, 1}}));
}

TEST(BucketPlan, WithoutALimitThereIsOneBucketPerDtypeAndDevice) {
  std::vector<TensorSpec> tensors{{0, 1u << 30, 0, 0}, {1, 8, 1, 0}, {2, 1u << 30, 0, 0}, {3, 8, 0, 1}};
  EXPECT_EQ(plan_initial_buckets(tensors, {kUnlimitedBucketBytes}), (BucketPlan{{3}, {1}, {0, 2}}));
}

TEST(BucketPlan, ThePlanFollowsTheOrderOfReadiness) {
  const std::vector<TensorSpec> tensors{{3, 10, 0, 0}, {1, 10, 0, 0}, {0, 10, 0, 0}, {2, 10, 0, 0}};
  EXPECT_EQ(plan_buckets(tensors, {20}), (BucketPlan{{3, 1}, {0, 2}}));
}

TEST(BucketPlan, EmptyInputAndEmptyTensorsAreFine) {
  EXPECT_TRUE(plan_buckets({}, {1}).empty());
  EXPECT_EQ(plan_buckets(tensors_of({0, 0}), {1}), (BucketPlan{{0, 1}}));
}

TEST(BucketPlan, NoCapsOrACapOfZeroAreRefused) {
  EXPECT_THROW(plan_buckets(tensors_of({1}), {}), InvalidArgument);
  EXPECT_THROW(plan_buckets(tensors_of({1}), {10, 0}), InvalidArgument);
}

// Properties over random input: every tensor once, kinds never mixed, a bucket without its last tensor is below its
// cap, a full one reaches it.
TEST(BucketPlan, RandomPlansKeepTheRules) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<TensorSpec> tensors(random() % 40);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      tensors[i] = {i, random() % 50, static_cast<std::int32_t>(random() % 2), static_cast<std::int32_t>(random() % 2),
                    random() % 10 == 0};
    }
    const BucketCaps caps{1 + random() % 40, 1 + random() % 80};
    std::vector<std::size_t> seen;
    std::map<std::pair<int, int>, std::size_t> buckets_of_kind;
    for (const auto& bucket : plan_buckets(tensors, caps)) {
      ASSERT_FALSE(bucket.empty());
      seen.insert(seen.end(), bucket.begin(), bucket.end());
      const TensorSpec& first = tensors[bucket.front()];
      if (first.sparse) {
        EXPECT_EQ(bucket.size(), 1u);
        continue;
      }
      std::size_t without_last = 0;
      for (std::size_t i = 0; i + 1 < bucket.size(); ++i) without_last += tensors[bucket[i]].bytes;
      for (std::size_t i : bucket) {
        EXPECT_FALSE(tensors[i].sparse);
        EXPECT_EQ(tensors[i].dtype, first.dtype);
        EXPECT_EQ(tensors[i].device, first.device);
      }
      const std::size_t number = buckets_of_kind[{first.dtype, first.device}]++;
      EXPECT_LT(without_last, caps[std::min<std::size_t>(number, 1)]);
    }
    std::sort(seen.begin(), seen.end());
    std::vector<std::size_t> all(tensors.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    EXPECT_EQ(seen, all);
  }
}

}  // namespace
}  // namespace gradwire

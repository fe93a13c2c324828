// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Which bucket is launched when.
#include "gradwire/ddp/iteration_internal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace gradwire::internal {
namespace {

const BucketPlan kPlan{{3, 1}, {0}, {4, 2}};

std::size_t bucket_of(std::size_t parameter) {
  for (std::size_t bucket = 0; bucket < kPlan.size(); ++bucket) {
    if (std::find(kPlan[bucket].begin(), kPlan[bucket].end(), parameter) != kPlan[bucket].end()) return bucket;
  }
  return kPlan.size();
}

// Whatever the order of the gradients: buckets come in their order, each once, none before all of its gradients, and
// the last with the last gradient.
TEST(Iteration, LaunchesBucketsInOrderAsTheyBecomeComplete) {
  std::vector<std::size_t> order(5);
  std::iota(order.begin(), order.end(), std::size_t{0});
  do {
    Iteration iteration;
    iteration.reset(kPlan);
    iteration.expect();
    std::vector<std::size_t> launched;
    std::vector<std::size_t> taken;
    for (const std::size_t parameter : order) {
      EXPECT_FALSE(iteration.all_launched());
      EXPECT_TRUE(iteration.take(parameter, bucket_of(parameter)));
      taken.push_back(parameter);
      while (const auto bucket = iteration.next_complete_bucket()) {
        EXPECT_EQ(*bucket, launched.size());
        launched.push_back(*bucket);
        for (const std::size_t member : kPlan[*bucket])
          EXPECT_NE(std::find(taken.begin(), taken.end(), member), taken.end());
      }
    }
    EXPECT_TRUE(iteration.all_launched());
    EXPECT_EQ(launched.size(), kPlan.size());
    EXPECT_EQ(iteration.order(), order);
    EXPECT_TRUE(iteration.missing().empty());
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(Iteration, KnowsWhatIsMissingAndWhatCameTwice) {
  Iteration iteration;
  iteration.reset(kPlan);
  EXPECT_FALSE(iteration.under_way());
  EXPECT_TRUE(iteration.take(0, 1));
  EXPECT_FALSE(iteration.under_way()) << "a local pass";
  iteration.expect();
  EXPECT_TRUE(iteration.under_way());
  EXPECT_FALSE(iteration.take(0, 1));
  EXPECT_TRUE(iteration.take(3, 0));
  EXPECT_FALSE(iteration.next_complete_bucket().has_value());
  EXPECT_EQ(iteration.missing(), (std::vector<std::size_t>{1, 2, 4}));
}

TEST(Iteration, BeginsAnew) {
  Iteration iteration;
  iteration.reset(kPlan);
  iteration.expect_as_joined();
  EXPECT_TRUE(iteration.joined());
  EXPECT_TRUE(iteration.begin_pass());
  EXPECT_FALSE(iteration.begin_pass());
  EXPECT_TRUE(iteration.enter_pass(7));
  EXPECT_FALSE(iteration.enter_pass(7));
  for (std::size_t parameter = 0; parameter < 5; ++parameter) iteration.take(parameter, bucket_of(parameter));
  while (iteration.next_complete_bucket()) {
  }
  iteration.end();
  iteration.reset({{0, 1}});
  EXPECT_EQ(iteration.number(), 1U);
  EXPECT_FALSE(iteration.expected());
  EXPECT_FALSE(iteration.joined());
  EXPECT_FALSE(iteration.any_launched());
  EXPECT_TRUE(iteration.begin_pass());
  EXPECT_TRUE(iteration.enter_pass(7));
  EXPECT_EQ(iteration.missing(), (std::vector<std::size_t>{0, 1}));
}

TEST(Iteration, HidesNoMoreThanWhatIsCommunicatedBeforeTheLastGradient) {
  Iteration iteration;
  iteration.reset({{0}, {1}});
  iteration.mark_forward();
  iteration.begin_pass();
  iteration.take(0, 0);
  iteration.next_complete_bucket();
  iteration.take(1, 1);
  iteration.next_complete_bucket();
  const auto end = Iteration::Clock::now();
  const DdpTimes times = iteration.times(end);
  EXPECT_GE(times.forward_compute.count(), 0);
  EXPECT_GE(times.backward_compute.count(), 0);
  EXPECT_GE(times.backward_comm, times.backward_compute_comm_overlap);
  EXPECT_EQ(iteration.times(std::nullopt).backward_comm.count(), 0);
}

}  // namespace
}  // namespace gradwire::internal

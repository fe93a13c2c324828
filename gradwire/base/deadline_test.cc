// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/base/deadline.h"

#include <gtest/gtest.h>

namespace gradwire::deadline_test {
namespace {

TEST(DeadlineTest, ZeroAndLessHaveExpired) {
  EXPECT_TRUE(Deadline::after(Milliseconds(0)).expired());
  EXPECT_TRUE(Deadline::after(Milliseconds(-1000)).expired());
  EXPECT_EQ(Deadline::after(Milliseconds(0)).remaining(), Milliseconds(0));
  EXPECT_EQ(Deadline::after(Milliseconds(-1000)).remaining(), Milliseconds(0));
}

TEST(DeadlineTest, ALaterOneHasTimeLeftButNoMoreThanAsked) {
  const Deadline deadline = Deadline::after(std::chrono::hours(1));
  EXPECT_FALSE(deadline.expired());
  EXPECT_GT(deadline.remaining(), std::chrono::minutes(30));
  EXPECT_LE(deadline.remaining(), std::chrono::hours(1));
}

TEST(DeadlineTest, ItExpires) {
  const Deadline deadline = Deadline::after(Milliseconds(5));
  Milliseconds last = deadline.remaining();
  while (!deadline.expired()) {
    const Milliseconds now = deadline.remaining();
    ASSERT_LE(now, last);
    last = now;
  }
  EXPECT_EQ(deadline.remaining(), Milliseconds(0));
  EXPECT_GE(Deadline::Clock::now(), deadline.point());
}

TEST(DeadlineTest, RemainingIsRoundedUpSoThatAWaitOfThatLengthReachesThePoint) {
  for (int i = 0; i < 1000; ++i) {
    const Deadline deadline = Deadline::after(Milliseconds(3));
    const auto remaining = deadline.remaining();
    const auto after = Deadline::Clock::now();
    EXPECT_GE(after + remaining, deadline.point());
  }
}

TEST(DeadlineTest, NeverNeverExpires) {
  EXPECT_FALSE(Deadline::never().expired());
  EXPECT_EQ(Deadline::never().remaining(), Milliseconds::max());
}

TEST(DeadlineTest, WhatOverflowsTheClockIsNever) {
  for (const Milliseconds timeout :
       {Milliseconds::max(), Milliseconds::max() - Milliseconds(1), Milliseconds::max() / 2,
        std::chrono::duration_cast<Milliseconds>(Deadline::Clock::duration::max())}) {
    EXPECT_EQ(Deadline::after(timeout).point(), Deadline::never().point()) << timeout.count();
  }
  // A hundred years fit.
  EXPECT_NE(Deadline::after(std::chrono::hours(24 * 365 * 100)).point(), Deadline::never().point());
}

TEST(DeadlineTest, AVeryNegativeTimeoutHasExpired) {
  EXPECT_TRUE(Deadline::after(Milliseconds::min()).expired());
  EXPECT_EQ(Deadline::after(Milliseconds::min()).remaining(), Milliseconds(0));
}

TEST(DeadlineTest, ASumOfTimeoutsStopsAtTheLongestDuration) {
  EXPECT_EQ(saturated_sum(Milliseconds(2), Milliseconds(3)), Milliseconds(5));
  EXPECT_EQ(saturated_sum(Milliseconds::max(), Milliseconds(0)), Milliseconds::max());
  EXPECT_EQ(saturated_sum(Milliseconds::max(), Milliseconds(1)), Milliseconds::max());
  EXPECT_EQ(saturated_sum(Milliseconds::max() - Milliseconds(1), Milliseconds(2)), Milliseconds::max());
}

TEST(DeadlineTest, EarlierIsTheLesser) {
  const Deadline soon = Deadline::after(Milliseconds(1));
  const Deadline late = Deadline::after(std::chrono::hours(1));
  EXPECT_EQ(soon.earlier(late).point(), soon.point());
  EXPECT_EQ(late.earlier(soon).point(), soon.point());
  EXPECT_EQ(Deadline::never().earlier(late).point(), late.point());
}

}  // namespace
}  // namespace gradwire::deadline_test

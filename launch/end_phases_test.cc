// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/end_phases.h"

#include <gtest/gtest.h>

namespace gradwire::launch {
namespace {

using std::chrono::milliseconds;
using Phase = EndPhases::Phase;

// No phase asks the clock.
const EndPhases::Time kBegin = EndPhases::Time(std::chrono::hours(1));

TEST(EndPhasesTest, EachPhaseLastsItsTimeAndIsFollowedByTheNext) {
  EndPhases phases({.notice = milliseconds(1000), .grace = milliseconds(300)});
  EXPECT_TRUE(phases.is(Phase::running));
  EXPECT_EQ(phases.due(kBegin + std::chrono::hours(1000)), std::nullopt) << "a job may run for any time";
  EXPECT_EQ(phases.next(kBegin).point(), Deadline::never().point());
  auto at = kBegin;
  phases.enter(Phase::noticing, at);
  for (const auto& [time, next] :
       {std::pair(milliseconds(1000), Phase::asked), std::pair(milliseconds(300), Phase::killed),
        std::pair(milliseconds(5000), Phase::gone)}) {
    EXPECT_EQ(phases.due(at + time - milliseconds(1)), std::nullopt);
    at += time;
    ASSERT_EQ(phases.due(at), next);
    phases.enter(next, at);
  }
  EXPECT_EQ(phases.due(at + std::chrono::hours(1000)), std::nullopt);
  EXPECT_EQ(phases.next(at).point(), Deadline::never().point());
}

TEST(EndPhasesTest, AJobThatEndsAlreadyIsNotLate) {
  const Deadline end = Deadline::after(milliseconds(0));
  EndPhases phases({.job_end = end});
  EXPECT_FALSE(phases.is_late(end.point() - milliseconds(1)));
  EXPECT_TRUE(phases.is_late(end.point()));
  EXPECT_EQ(phases.next(end.point()).point(), end.point());
  phases.enter(Phase::asked, end.point());
  EXPECT_FALSE(phases.is_late(end.point() + std::chrono::hours(1)));
}

TEST(EndPhasesTest, TimesWithoutAnEndAreNeverOver) {
  EndPhases phases({.grace = Milliseconds::max()});
  phases.enter(Phase::asked, kBegin);
  EXPECT_EQ(phases.due(kBegin + std::chrono::hours(100000)), std::nullopt);
  EXPECT_EQ(phases.next(kBegin).point(), Deadline::never().point());
}

}  // namespace
}  // namespace gradwire::launch

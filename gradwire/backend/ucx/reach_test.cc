// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/ucx/reach_internal.h"

#include <gtest/gtest.h>

namespace gradwire::ucx {
namespace {

using std::chrono::hours;

// Looks every 200 ms for `time`.
void look_for(Reach& reach, Deadline::Clock::time_point& now, Milliseconds time) {
  for (const auto end = now + time; now < end; now += Milliseconds(200)) reach.look(now);
}

TEST(Reach, EndsAfterTenSecondsOrFourSilences) {
  for (const auto& [silence, patience] :
       {std::pair(Milliseconds(100), Milliseconds(10'000)), std::pair(Milliseconds(5'000), Milliseconds(20'000))}) {
    Reach reach(true, silence);
    Deadline::Clock::time_point now{hours(1)};
    look_for(reach, now, patience / 2);
    EXPECT_FALSE(reach.is_nearly_over());
    reach.look(now);
    EXPECT_TRUE(reach.is_nearly_over());
    look_for(reach, now, patience / 2);
    EXPECT_FALSE(reach.is_over());
    reach.look(now);
    EXPECT_TRUE(reach.is_over());
    EXPECT_EQ(reach.tried(), patience);
  }
}

TEST(Reach, DoesNotCountTimeInWhichTheProcessDidNotRun) {
  Reach reach(true, Milliseconds(2400));
  Deadline::Clock::time_point now{hours(1)};
  reach.look(now);
  reach.look(now += hours(1));
  EXPECT_FALSE(reach.is_nearly_over());
}

TEST(Reach, DoesNotEndWherePartnersMayWaitForOthers) {
  Reach reach(false, Milliseconds(2400));
  Deadline::Clock::time_point now{hours(1)};
  look_for(reach, now, Milliseconds(60'000));
  EXPECT_FALSE(reach.is_nearly_over());
  EXPECT_FALSE(reach.is_over());
}

}  // namespace
}  // namespace gradwire::ucx

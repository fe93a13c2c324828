// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/base/watched_time.h"

#include <gtest/gtest.h>

namespace gradwire {
namespace {

TEST(WatchedTime, TheTimeInWhichNobodyLookedCountsForLittle) {
  const Deadline::Clock::time_point begin = Deadline::Clock::now();
  WatchedTime time;
  const auto look = [&](int now) {
    return std::chrono::duration_cast<Milliseconds>(time.look(begin + Milliseconds(now), Milliseconds(250))).count();
  };
  EXPECT_EQ(look(1000), 0);
  EXPECT_EQ(look(1100), 100);
  EXPECT_EQ(look(1350), 350);
  EXPECT_EQ(look(61350), 600) << "a minute without a look";
  EXPECT_EQ(look(61450), 700);
}

}  // namespace
}  // namespace gradwire

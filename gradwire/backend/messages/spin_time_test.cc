// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/messages/spin_time_internal.h"

#include <gtest/gtest.h>

namespace gradwire::messages {
namespace {

using std::chrono::microseconds;

TEST(SpinTime, FramesThatComeLateShortenItAndOneThatComesSoonRestoresIt) {
  SpinTime spin(microseconds(32), microseconds(0));
  EXPECT_EQ(spin.now(), microseconds(32));
  for (const int left : {16, 8, 4, 2, 2}) {
    spin.learn(microseconds(33));
    EXPECT_EQ(spin.now(), microseconds(left));
  }
  spin.learn(microseconds(32));
  EXPECT_EQ(spin.now(), microseconds(32));
}

// A frame that comes after 10 us is known after 10 us while the waiter spins, and after 80 us once it sleeps.
TEST(SpinTime, AWaiterThatHasSleptOnceSpinsAgain) {
  constexpr microseconds kFrame{10}, kWakeUp{70};
  SpinTime spin(microseconds(32), microseconds(100));
  spin.learn(std::chrono::milliseconds(5));
  spin.learn(std::chrono::milliseconds(5));
  ASSERT_LT(spin.now(), kFrame);
  spin.learn(kFrame + kWakeUp);
  EXPECT_EQ(spin.now(), microseconds(32));
}

}  // namespace
}  // namespace gradwire::messages

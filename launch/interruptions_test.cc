// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/interruptions.h"

#include <gtest/gtest.h>
#include <signal.h>

namespace gradwire::launch {
namespace {

using std::chrono::milliseconds;

TEST(InterruptionsTest, ASignalThatArrivesTwiceCountsOnce) {
  const Interruptions::Time begin{std::chrono::hours(1)};
  Interruptions interruptions;
  EXPECT_EQ(interruptions.first(), 0);
  EXPECT_EQ(interruptions.take(SIGINT, begin), Interruptions::Kind::first);
  EXPECT_EQ(interruptions.take(SIGINT, begin), Interruptions::Kind::repeated);
  EXPECT_EQ(interruptions.take(SIGTERM, begin + milliseconds(249)), Interruptions::Kind::repeated);
  EXPECT_EQ(interruptions.take(SIGTERM, begin + milliseconds(250)), Interruptions::Kind::another);
  EXPECT_EQ(interruptions.take(SIGINT, begin + std::chrono::hours(1)), Interruptions::Kind::another);
  EXPECT_EQ(interruptions.first(), SIGINT);
}

// What the first one asks for may take longer than the second one takes to arrive.
TEST(InterruptionsTest, ASignalThatArrivedWhileTheFirstWasHandledIsARepeatedOne) {
  const Interruptions::Time begin{std::chrono::hours(1)};
  Interruptions interruptions;
  EXPECT_EQ(interruptions.take(SIGINT, begin), Interruptions::Kind::first);
  interruptions.has_handled(begin + std::chrono::seconds(3));
  EXPECT_EQ(interruptions.take(SIGINT, begin + milliseconds(3249)), Interruptions::Kind::repeated);
  EXPECT_EQ(interruptions.take(SIGINT, begin + milliseconds(3250)), Interruptions::Kind::another);
}

}  // namespace
}  // namespace gradwire::launch

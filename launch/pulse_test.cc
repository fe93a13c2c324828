// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// When a process is taken for one that hangs.
#include "launch/pulse.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace gradwire::launch::pulse_test {
namespace {

using std::chrono::seconds;

constexpr PulseWatch::Time kBegin{seconds(1000)};

TEST(PulseTest, AProcessIsSilentWhenItHasGivenNoSignForTheLimit) {
  PulseWatch watch(seconds(3));
  const UniqueFd writer = watch.begin(kBegin);
  Pulse(writer.get()).beat();
  for (int second = 1; second <= 3; ++second) EXPECT_FALSE(watch.finds_silence(kBegin + seconds(second)));
  EXPECT_TRUE(watch.finds_silence(kBegin + seconds(4)));
  EXPECT_FALSE(watch.finds_silence(kBegin + seconds(5))) << "it was told once";
}

TEST(PulseTest, TimeInWhichTheLauncherDidNotLookCountsForOneLook) {
  PulseWatch watch(seconds(3));
  const UniqueFd writer = watch.begin(kBegin);
  EXPECT_FALSE(watch.finds_silence(kBegin + seconds(100)));
  EXPECT_FALSE(watch.finds_silence(kBegin + seconds(101)));
  EXPECT_TRUE(watch.finds_silence(kBegin + seconds(102)));
}

TEST(PulseTest, AnotherProcessBeginsAnew) {
  PulseWatch watch(seconds(2));
  const UniqueFd first = watch.begin(kBegin);
  EXPECT_FALSE(watch.finds_silence(kBegin + seconds(1)));
  watch.end();
  EXPECT_FALSE(watch.finds_silence(kBegin + seconds(2)));
  const UniqueFd second = watch.begin(kBegin + seconds(2));
  EXPECT_FALSE(watch.finds_silence(kBegin + seconds(3)));
  EXPECT_TRUE(watch.finds_silence(kBegin + seconds(4)));
}

TEST(PulseTest, SignsThatNobodyReadsDoNotHoldTheProcessUp) {
  PulseWatch watch(seconds(2));
  const UniqueFd writer = watch.begin(kBegin);
  const char many[4096] = {};
  while (::write(writer.get(), many, sizeof(many)) > 0) {
  }
  Pulse(writer.get()).beat();
  EXPECT_FALSE(watch.finds_silence(kBegin + seconds(1)));
}

TEST(PulseTest, TheNextLookIsASecondAfterTheLast) {
  PulseWatch watch(seconds(2));
  EXPECT_EQ(watch.next_look().point(), Deadline::never().point());
  const UniqueFd writer = watch.begin(kBegin);
  EXPECT_EQ(watch.next_look().point(), kBegin + PulseWatch::kLook);
  watch.finds_silence(kBegin + seconds(1));
  EXPECT_EQ(watch.next_look().point(), kBegin + seconds(1) + PulseWatch::kLook);
}

}  // namespace
}  // namespace gradwire::launch::pulse_test

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Tests, with a clock of its own, who is found silent and who gets a beat.
#include "gradwire/backend/ucx/liveness_internal.h"

#include <gtest/gtest.h>

namespace gradwire::ucx {
namespace {

constexpr Milliseconds kSilence{800};
constexpr Milliseconds kPeriod{100};
using Peers = std::vector<std::size_t>;

class LivenessTest : public ::testing::Test {
 protected:
  Liveness::Findings tick(Milliseconds later) { return liveness_.tick(now_ += later); }

  Liveness::Clock::time_point now_{std::chrono::hours(1)};
  Liveness liveness_{3, kSilence, now_};
};

TEST_F(LivenessTest, APeerIsSilentAfterTheSilenceAndNotBefore) {
  for (int i = 0; i < 7; ++i) {
    liveness_.heard(0);
    EXPECT_EQ(tick(kPeriod).silent, Peers{}) << i;
  }
  liveness_.heard(0);
  liveness_.heard(2);
  EXPECT_EQ(tick(kPeriod).silent, Peers{1});
}

TEST_F(LivenessTest, BeatsGoToThoseToWhomNothingWasWritten) {
  liveness_.wrote(1);
  EXPECT_EQ(tick(kPeriod).to_beat, (Peers{0, 2}));
  EXPECT_EQ(tick(kPeriod).to_beat, (Peers{0, 1, 2}));
}

TEST_F(LivenessTest, BeatsGoSeveralTimesWithinTheSilence) {
  EXPECT_EQ(liveness_.next_tick() - now_, kPeriod);
  tick(kPeriod);
  EXPECT_EQ(liveness_.next_tick() - now_, kPeriod);
}

TEST_F(LivenessTest, BeatsGoByTheShortestSilenceAndPeersAreSilentByTheOwn) {
  Liveness patient{1, {0}, {4 * kSilence, kSilence}, now_};
  EXPECT_EQ(patient.next_tick() - now_, kPeriod);
  for (int i = 0; i < 31; ++i) EXPECT_EQ(patient.tick(now_ += kPeriod).silent, Peers{}) << i;
  EXPECT_EQ(patient.tick(now_ += kPeriod).silent, Peers{0});
}

TEST_F(LivenessTest, ASilenceThatIsExtendedCountsForTheTimeBeforeToo) {
  for (int i = 0; i < 7; ++i) tick(kPeriod);
  liveness_.extend_silence(kSilence / 2);
  liveness_.extend_silence(2 * kSilence);
  EXPECT_EQ(liveness_.next_tick() - now_, kPeriod);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(tick(kPeriod).silent, Peers{}) << i;
  EXPECT_EQ(tick(kPeriod).silent, (Peers{0, 1, 2}));
}

TEST_F(LivenessTest, APeerThatIsAwaitedIsSilentAfterTheSilenceFromThenOn) {
  Liveness few{3, {0}, {kSilence, kSilence}, now_};
  for (int i = 0; i < 20; ++i) {
    few.heard(0);
    EXPECT_EQ(few.tick(now_ += kPeriod).silent, Peers{}) << "nobody looks at 1 and 2";
  }
  few.await(2, now_);
  few.heard(2);
  few.heard(0);
  EXPECT_EQ(few.tick(now_ += kPeriod).unheard, Peers{});
  for (int i = 0; i < 7; ++i) {
    few.heard(0);
    few.await(2, now_);
    const Liveness::Findings findings = few.tick(now_ += kPeriod);
    EXPECT_EQ(findings.silent, Peers{}) << i;
    EXPECT_EQ(findings.unheard, Peers{2}) << i;
  }
  few.heard(0);
  EXPECT_EQ(few.tick(now_ += kPeriod).silent, Peers{2});
  few.forget(2);
  few.heard(0);
  EXPECT_EQ(few.tick(now_ += kPeriod).silent, Peers{});
}

TEST_F(LivenessTest, APeerIsWatchedUntilNobodyHasAwaitedItForTheSilence) {
  Liveness none{2, {}, {kSilence, kSilence}, now_};
  none.await(1, now_);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(none.tick(now_ += kPeriod).unheard, Peers{1}) << i;
  none.await(1, now_);
  none.heard(1);
  none.tick(now_ += kPeriod);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(none.tick(now_ += kPeriod).unheard, Peers{1}) << i;
  for (int i = 0; i < 20; ++i) {
    const Liveness::Findings findings = none.tick(now_ += kPeriod);
    EXPECT_EQ(findings.unheard, Peers{}) << i;
    EXPECT_EQ(findings.silent, Peers{}) << i;
  }
  none.await(1, now_);
  EXPECT_EQ(none.tick(now_ += kPeriod).silent, Peers{}) << "the time in which nobody looked counts";
}

TEST_F(LivenessTest, ATimeInWhichThisProcessStoodStillIsNotThePeers) {
  tick(kPeriod);
  EXPECT_EQ(tick(std::chrono::hours(5)).silent, Peers{}) << "a process that was stopped accuses the others";
  // From here on the time counts again; of the silence 100 ms had passed before.
  for (int i = 0; i < 6; ++i) EXPECT_EQ(tick(kPeriod).silent, Peers{}) << i;
  EXPECT_EQ(tick(kPeriod).silent, (Peers{0, 1, 2}));
}

}  // namespace
}  // namespace gradwire::ucx

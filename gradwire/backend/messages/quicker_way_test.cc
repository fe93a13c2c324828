// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/messages/quicker_way_internal.h"

#include <gtest/gtest.h>

#include <deque>
#include <utility>

namespace gradwire::messages {
namespace {

using std::chrono::microseconds;
using Way = QuickerWay::Way;

constexpr std::size_t kBytes = std::size_t{1} << 20;
constexpr std::size_t kFirstTries = 2 * QuickerWay::kTries;

class QuickerWayTest : public ::testing::Test {
 protected:
  // A message alone; the way it went.
  Way receive(std::size_t bytes = kBytes) {
    const QuickerWay::Begun begun = way_.begin(bytes);
    now_ += time_of(begun.way);
    way_.end(begun.burst, bytes);
    return begun.way;
  }
  // How many of the messages were pulled.
  std::size_t pulls_of(std::size_t messages, std::size_t bytes = kBytes) {
    std::size_t pulls = 0;
    for (std::size_t i = 0; i < messages; ++i) pulls += receive(bytes) == Way::pull ? 1 : 0;
    return pulls;
  }
  microseconds time_of(Way way) const { return way == Way::pull ? pull_ : frames_; }

  microseconds pull_{100};
  microseconds frames_{50};
  QuickerWay::TimePoint now_{std::chrono::hours(1)};
  QuickerWay way_{[this] { return now_; }};
};

TEST_F(QuickerWayTest, BothWaysAreTriedInTurnAndTheFirstMessageIsPulled) {
  for (std::size_t i = 0; i < kFirstTries; ++i) EXPECT_EQ(receive(), i % 2 == 0 ? Way::pull : Way::frames);
}

TEST_F(QuickerWayTest, WithoutAClockAllArePulled) {
  QuickerWay without(nullptr);
  for (int i = 0; i < 100; ++i) {
    const QuickerWay::Begun begun = without.begin(kBytes);
    EXPECT_EQ(begun.way, Way::pull);
    EXPECT_EQ(begun.burst, 0U);
  }
}

TEST_F(QuickerWayTest, AfterTheTriesMessagesGoTheQuickerWayAndSomeTheOther) {
  constexpr std::size_t kMessages = 10 * QuickerWay::kInterval, kOther = kMessages / QuickerWay::kInterval;
  pulls_of(kFirstTries);
  EXPECT_EQ(pulls_of(kMessages), kOther);
  std::swap(pull_, frames_);
  pulls_of(kFirstTries, 2 * kBytes);
  EXPECT_EQ(pulls_of(kMessages, 2 * kBytes), kMessages - kOther);
}

TEST_F(QuickerWayTest, ATryThatWasHeldUpDecidesNothing) {
  for (std::size_t i = 0; i < kFirstTries; ++i) {
    frames_ = microseconds(i < QuickerWay::kTries - 1 ? 10'000 : 50);  // less than half of them
    receive();
  }
  EXPECT_EQ(pulls_of(10), 0U);
}

TEST_F(QuickerWayTest, TheOtherWayIsTakenOnceItIsQuicker) {
  pulls_of(kFirstTries);
  ASSERT_EQ(receive(), Way::frames);
  pull_ = microseconds(20);
  pulls_of((QuickerWay::kTries / 2 + 1) * QuickerWay::kInterval);
  EXPECT_EQ(pulls_of(10), 10U);
  pull_ = microseconds(200);  // the latest times count
  pulls_of(QuickerWay::kTries);
  EXPECT_EQ(pulls_of(10), 0U);
}

TEST_F(QuickerWayTest, SizesAreToldApart) {
  constexpr std::size_t kLarger = 2 * kBytes;
  pulls_of(kFirstTries);
  std::swap(pull_, frames_);
  pulls_of(kFirstTries, kLarger);
  EXPECT_EQ(pulls_of(10, kLarger), 10U);
  std::swap(pull_, frames_);
  EXPECT_EQ(pulls_of(10), 0U);
}

TEST_F(QuickerWayTest, MessagesAtTheSameTimeGoTheSameWayAndAreMeasuredTogether) {
  for (std::size_t i = 0; i < kFirstTries; ++i) {
    const QuickerWay::Begun begun = way_.begin(kBytes);
    EXPECT_EQ(begun.way, i % 2 == 0 ? Way::pull : Way::frames);
    for (int more = 0; more < 2; ++more) {
      EXPECT_EQ(way_.begin(kBytes).way, begun.way);
      now_ += time_of(begun.way);
      way_.end(begun.burst, kBytes);
    }
    now_ += time_of(begun.way);
    way_.end(begun.burst, kBytes);
  }
  EXPECT_EQ(pulls_of(10), 0U);
}

// A receiver that posts the next receive before the one before has ended.
TEST_F(QuickerWayTest, WhereOneMessageIsAlwaysUnderWayTheQuickerWayIsFoundAllTheSame) {
  for (const bool pull_is_quicker : {false, true}) {
    if (pull_is_quicker) std::swap(pull_, frames_);
    const std::size_t bytes = pull_is_quicker ? 2 * kBytes : kBytes;
    std::deque<QuickerWay::Begun> under_way{way_.begin(bytes)};
    std::size_t quicker = 0;
    constexpr std::size_t kTried = 2 * kFirstTries * QuickerWay::kMostOfABurst, kAll = kTried + 100;
    for (std::size_t i = 0; i < kAll; ++i) {
      under_way.push_back(way_.begin(bytes));
      now_ += time_of(under_way.front().way);
      way_.end(under_way.front().burst, bytes);
      const bool is_pull = under_way.back().way == Way::pull;
      quicker += i >= kTried && is_pull == pull_is_quicker ? 1 : 0;
      under_way.pop_front();
    }
    EXPECT_EQ(quicker, kAll - kTried);
  }
}

TEST_F(QuickerWayTest, MessagesOfSeveralSizesAtTheSameTimeDecideNothing) {
  pulls_of(kFirstTries);
  for (std::size_t i = 1; i < QuickerWay::kInterval; ++i) {
    const QuickerWay::Begun begun = way_.begin(kBytes);
    EXPECT_EQ(begun.way, Way::frames);
    const QuickerWay::Begun other = way_.begin(4 * kBytes);
    EXPECT_EQ(other.way, Way::pull) << "nothing is known of that size";
    now_ += std::chrono::milliseconds(10);  // as if frames were slow
    way_.end(begun.burst, kBytes);
    way_.end(other.burst, 4 * kBytes);
  }
  receive();  // the one that goes the other way
  EXPECT_EQ(pulls_of(10), 0U);
}

// Their ends never come, or come in a later burst. The endpoint learns all the same, and what it learns is right.
TEST_F(QuickerWayTest, MessagesThatAreGivenUpOrLateDecideNothing) {
  for (const bool pull_is_quicker : {false, true}) {
    if (pull_is_quicker) std::swap(pull_, frames_);
    const std::size_t bytes = pull_is_quicker ? 2 * kBytes : kBytes;
    for (int i = 0; i < 5; ++i) {
      const QuickerWay::Begun late = way_.begin(bytes);
      way_.begin(bytes);
      now_ += std::chrono::seconds(2);
      const QuickerWay::Begun next = way_.begin(bytes);
      EXPECT_NE(next.burst, late.burst);
      way_.end(late.burst, bytes);
      now_ += time_of(next.way);
      way_.end(next.burst, bytes);
    }
    pulls_of(kFirstTries, bytes);
    EXPECT_EQ(pulls_of(10, bytes), pull_is_quicker ? 10U : 0U);
  }
}

TEST_F(QuickerWayTest, EverySizeLearnsForItself) {
  for (std::size_t bytes = 1; bytes < std::size_t{1} << 31; bytes <<= 1) {
    EXPECT_EQ(receive(bytes), Way::pull) << bytes;
    EXPECT_EQ(receive(bytes), Way::frames) << bytes;
  }
  receive(~std::size_t{0});
}

}  // namespace
}  // namespace gradwire::messages

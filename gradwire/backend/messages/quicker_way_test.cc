// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/messages/quicker_way_internal.h"

#include <gtest/gtest.h>

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
    const Way way = way_.begin(bytes, now_);
    now_ += time_of(way);
    way_.end(bytes, now_);
    return way;
  }
  // How many of the messages were pulled.
  std::size_t pulls_of(std::size_t messages, std::size_t bytes = kBytes) {
    std::size_t pulls = 0;
    for (std::size_t i = 0; i < messages; ++i) pulls += receive(bytes) == Way::pull ? 1 : 0;
    return pulls;
  }
  microseconds time_of(Way way) { return way == Way::pull ? pull_ : frames_; }

  microseconds pull_{100};
  microseconds frames_{50};
  QuickerWay way_;
  QuickerWay::Clock::time_point now_{std::chrono::hours(1)};
};

TEST_F(QuickerWayTest, BothWaysAreTriedInTurnAndTheFirstMessageIsPulled) {
  for (std::size_t i = 0; i < kFirstTries; ++i) EXPECT_EQ(receive(), i % 2 == 0 ? Way::pull : Way::frames);
}

TEST_F(QuickerWayTest, AfterTheTriesMessagesGoTheQuickerWayAndSomeTheOther) {
  for (const auto& [pull, frames] : {std::pair(100, 50), std::pair(50, 100)}) {
    way_ = {};
    pull_ = microseconds(pull);
    frames_ = microseconds(frames);
    pulls_of(kFirstTries);
    constexpr std::size_t kMessages = 10 * QuickerWay::kInterval;
    const std::size_t pulls = pulls_of(kMessages);
    EXPECT_EQ(pull < frames ? kMessages - pulls : pulls, kMessages / QuickerWay::kInterval);
  }
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
    const Way way = way_.begin(kBytes, now_);
    EXPECT_EQ(way, i % 2 == 0 ? Way::pull : Way::frames);
    EXPECT_EQ(way_.begin(kBytes, now_), way);
    now_ += time_of(way);
    way_.end(kBytes, now_);
    EXPECT_EQ(way_.begin(kBytes, now_), way);
    now_ += time_of(way);
    for (int rest = 0; rest < 2; ++rest) way_.end(kBytes, now_);
  }
  EXPECT_EQ(pulls_of(10), 0U);
}

TEST_F(QuickerWayTest, MessagesOfSeveralSizesAtTheSameTimeDecideNothing) {
  pulls_of(kFirstTries);
  for (std::size_t i = 0; i < 100; ++i) {  // frames would seem slow
    const Way way = way_.begin(kBytes, now_);
    EXPECT_EQ(way_.begin(4 * kBytes, now_), Way::pull) << "nothing is known of that size";
    now_ += std::chrono::milliseconds(10);
    way_.end(kBytes, now_);
    way_.end(4 * kBytes, now_);
    if (i % QuickerWay::kInterval != 0) continue;
    EXPECT_EQ(way, Way::frames);
  }
  EXPECT_EQ(pulls_of(10), 0U);
}

// Its bytes never come. They must not keep the endpoint from learning for ever.
TEST_F(QuickerWayTest, AMessageThatIsGivenUpIsForgotten) {
  for (int i = 0; i < 5; ++i) {
    way_.begin(kBytes, now_);
    now_ += std::chrono::seconds(2);
  }
  pulls_of(kFirstTries);
  EXPECT_EQ(pulls_of(10), 0U);
}

TEST_F(QuickerWayTest, AnySizeIsTaken) {
  for (std::size_t bytes = 1; bytes != 0; bytes <<= 1) EXPECT_NO_FATAL_FAILURE(receive(bytes)) << bytes;
  receive(0);
}

}  // namespace
}  // namespace gradwire::messages

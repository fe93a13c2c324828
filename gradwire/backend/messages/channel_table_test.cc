// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Tests which channels are here, were removed or are not known yet, and whose messages can still come in one.
#include "gradwire/backend/messages/channel_table_internal.h"

#include <gtest/gtest.h>

#include <set>

#include "gradwire/base/error.h"

namespace gradwire::messages::channel_table_test {
namespace {

class ChannelTableTest : public ::testing::Test {
 protected:
  void remove(std::uint64_t first, std::uint64_t last) {
    channels_.remove(first, last, [](const ChannelState&) {});
  }
  ChannelTable channels_;
};

TEST_F(ChannelTableTest, AChannelBeginsWithItsFirstFrameAndStaysWhenItIsAdded) {
  ChannelState* const begun = channels_.find_or_begin(3);
  ASSERT_NE(begun, nullptr);
  EXPECT_EQ(begun->members, nullptr);
  channels_.add(3, std::make_shared<Members>(Members{0, {0, 1}}));
  EXPECT_EQ(channels_.find(3), begun);
  EXPECT_NE(begun->members, nullptr);
  EXPECT_EQ(channels_.find(4), nullptr);
}

TEST_F(ChannelTableTest, ARemovedChannelDoesNotBeginAgain) {
  channels_.add(3, nullptr);
  channels_.add(5, nullptr);
  int visited = 0;
  channels_.remove(2, 4, [&](const ChannelState&) { ++visited; });
  EXPECT_EQ(visited, 1);
  for (const std::uint64_t number : {2, 3, 4}) EXPECT_EQ(channels_.find_or_begin(number), nullptr) << number;
  EXPECT_NE(channels_.find_or_begin(1), nullptr);
  EXPECT_NE(channels_.find(5), nullptr);
}

TEST_F(ChannelTableTest, AChannelHasEndedOnceThisEndpointEndedIt) {
  EXPECT_FALSE(channels_.has_ended(3)) << "nobody has named it";
  channels_.add(3, nullptr);
  EXPECT_FALSE(channels_.has_ended(3));
  channels_.at(3).ended = std::make_exception_ptr(AbortedError("enough"));
  EXPECT_TRUE(channels_.has_ended(3));
  remove(3, 3);
  EXPECT_TRUE(channels_.has_ended(3));
}

// Against a plain set of numbers.
TEST_F(ChannelTableTest, RangesMayTouchAndLieWithinEachOther) {
  std::set<std::uint64_t> removed;
  const std::pair<std::uint64_t, std::uint64_t> ranges[] = {{10, 12}, {13, 13}, {20, 25}, {22, 23},
                                                            {9, 9},   {5, 7},   {6, 30},  {0, 0}};
  for (const auto& [first, last] : ranges) {
    remove(first, last);
    for (std::uint64_t number = first; number <= last; ++number) removed.insert(number);
    for (std::uint64_t number = 0; number < 40; ++number) {
      EXPECT_EQ(channels_.has_ended(number), removed.contains(number)) << number << " after " << first << "-" << last;
    }
  }
}

TEST_F(ChannelTableTest, TheOldestOfTooManyRangesIsForgotten) {
  constexpr std::uint64_t kRanges = ChannelTable::kRememberedRanges;
  // Descending, so that age and number are not the same order; one of them grows meanwhile.
  for (std::uint64_t number = kRanges; number > 0; --number) {
    remove(10 * number, 10 * number);
    remove(1'000'000'000 + kRanges - number, 1'000'000'000 + kRanges - number);
  }
  EXPECT_FALSE(channels_.has_ended(10 * kRanges));
  EXPECT_TRUE(channels_.has_ended(10 * kRanges - 10));
  EXPECT_TRUE(channels_.has_ended(10));
  EXPECT_TRUE(channels_.has_ended(1'000'000'000)) << "the range that grows counts as one";
  EXPECT_TRUE(channels_.has_ended(1'000'000'000 + kRanges - 1));
}

class LossesTest : public ::testing::Test {
 protected:
  static std::exception_ptr reason(int peer) { return std::make_exception_ptr(PeerError("gone", {peer})); }
  Losses losses_;
};

TEST_F(LossesTest, TheFirstReasonCounts) {
  const auto first = reason(1);
  EXPECT_TRUE(losses_.add(1, first));
  EXPECT_FALSE(losses_.add(1, reason(1)));
  EXPECT_EQ(losses_.why_unreachable(1, 2), first);
  EXPECT_EQ(losses_.why_unreachable(2, 2), nullptr);
}

TEST_F(LossesTest, OfAnyRankSomethingCanComeUntilTheLastOneIsLost) {
  losses_.add(1, reason(1));
  EXPECT_EQ(losses_.why_unreachable(kAnySource, 2), nullptr);
  losses_.add(2, reason(2));
  EXPECT_NE(losses_.why_unreachable(kAnySource, 2), nullptr);
  EXPECT_EQ(Losses().why_unreachable(kAnySource, 0), nullptr) << "alone, this rank itself may send";
}

TEST_F(LossesTest, OfAnyRankNothingComesAfterALossInBadOrder) {
  const auto first = reason(1);
  EXPECT_TRUE(losses_.break_off(first));
  EXPECT_FALSE(losses_.break_off(reason(2)));
  EXPECT_EQ(losses_.why_unreachable(kAnySource, 5), first);
  EXPECT_EQ(losses_.why_unreachable(1, 5), nullptr) << "what it sent before is to come first";
}

}  // namespace
}  // namespace gradwire::messages::channel_table_test

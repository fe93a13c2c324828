// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Tests that a receive is found by its offer, in a number of steps that does not grow with the number of receives.
#include "gradwire/backend/messages/matched_receives_internal.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "gradwire/backend/messages/message_table_internal.h"

namespace gradwire::messages::matched_receives_test {
namespace {

MessagePtr matched(int peer, std::uint64_t offer) {
  auto receive = std::make_shared<Message>(Message::Direction::receive, 1, peer, 0, nullptr, 0);
  receive->peer = peer;
  receive->other = offer;
  return receive;
}

// Numbers as a peer's MessageTable gives them.
std::uint64_t offer_number(std::uint64_t row, std::uint64_t uses) { return (uses << 32) | (row + 1); }

TEST(MatchedReceivesTest, FindingTakesNoMoreStepsWhereThereAreMore) {
  for (const std::size_t count : {100, 1000, 20'000}) {
    for (const int peers : {1, 2, 64}) {
      MatchedReceives receives;
      std::vector<MessagePtr> all;
      for (std::size_t i = 0; i < count; ++i) {
        const auto peer = static_cast<int>(i % static_cast<std::size_t>(peers));
        all.push_back(matched(peer, offer_number(i / static_cast<std::size_t>(peers), i % 3)));
        receives.reserve(all.size());
        receives.add(*all.back());
      }
      std::size_t steps = 0;
      for (const MessagePtr& each : all) ASSERT_EQ(receives.find(each->peer, each->other, &steps), each.get());
      EXPECT_LE(steps, 4 * count) << count << " receives of " << peers << " peers";
    }
  }
}

TEST(MatchedReceivesTest, WhatWasRemovedIsNotFound) {
  MatchedReceives receives;
  EXPECT_EQ(receives.find(0, 1), nullptr);
  std::vector<MessagePtr> all;
  for (std::uint64_t i = 0; i < 50; ++i) all.push_back(matched(static_cast<int>(i % 5), i));
  receives.reserve(all.size());
  for (const MessagePtr& each : all) receives.add(*each);
  for (std::size_t i = 0; i < all.size(); i += 2) MatchedReceives::remove(*all[i]);
  MatchedReceives::remove(*all[0]);  // once more
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(receives.find(all[i]->peer, all[i]->other), i % 2 == 0 ? nullptr : all[i].get()) << i;
    EXPECT_EQ(receives.find(9, all[i]->other), nullptr);
  }
}

TEST(MatchedReceivesTest, AMessageThatTheTableReleasesIsNotFoundAnyMore) {
  MessageTable table;
  std::vector<MessagePtr> all;
  for (std::uint64_t i = 1; i <= 100; ++i) {
    all.push_back(matched(2, i));
    table.add(all.back());
    table.set_matched(*all.back());
  }
  table.abandon(*all[41], nullptr);
  EXPECT_EQ(table.find_matched(2, 42), nullptr);
  EXPECT_EQ(table.find_matched(2, 43), all[42].get());
  all.push_back(matched(2, 42));
  table.add(all.back());
  table.set_matched(*all.back());
  EXPECT_EQ(table.find_matched(2, 42), all.back().get());
}

}  // namespace
}  // namespace gradwire::messages::matched_receives_test

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Tests when a message or an offer may go to a peer, and when the peer is told of what was freed.
#include "gradwire/backend/messages/credit_internal.h"

#include <gtest/gtest.h>

namespace gradwire::messages::credit_test {
namespace {

constexpr Limits kLimits{.eager_message = 100, .eager_bytes = 4 * (100 + kEagerOverhead), .offers = 2};

TEST(CreditTest, MessagesAreCoveredUpToTheLimitAndAgainWhenThePeerHasFreedSome) {
  Credit credit;
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(credit.covers_message(kLimits, 100)) << i;
    credit.use_message(100);
  }
  EXPECT_FALSE(credit.covers_message(kLimits, 0));
  credit.restore(100 + kEagerOverhead, 0);
  EXPECT_TRUE(credit.covers_message(kLimits, 100));
  EXPECT_FALSE(Credit().covers_message(kLimits, 101)) << "too large to go without being asked for";
}

TEST(CreditTest, OffersAreCoveredUpToTheLimit) {
  Credit credit;
  credit.use_offer();
  EXPECT_TRUE(credit.covers_offer(kLimits, /*is_own=*/false));
  credit.use_offer();
  EXPECT_FALSE(credit.covers_offer(kLimits, /*is_own=*/false));
  credit.restore(0, 1);
  EXPECT_TRUE(credit.covers_offer(kLimits, /*is_own=*/false));
}

TEST(CreditTest, OffersOfCollectivesAreCoveredWhenTheUsersAreAtTheLimit) {
  Credit credit;
  for (std::size_t i = 0; i < kLimits.offers; ++i) credit.use_offer();
  EXPECT_FALSE(credit.covers_offer(kLimits, /*is_own=*/false));
  for (std::size_t i = 0; i < kLimits.offers; ++i) {
    EXPECT_TRUE(credit.covers_offer(kLimits, /*is_own=*/true));
    credit.use_offer();
  }
  EXPECT_FALSE(credit.covers_offer(kLimits, /*is_own=*/true));
}

TEST(CreditTest, APeerThatFreesMoreThanItHasGetsNoMoreThanTheLimit) {
  Credit credit;
  credit.use_message(10);
  credit.use_offer();
  credit.restore(1'000'000, 1'000'000);
  for (int i = 0; i < 4; ++i) credit.use_message(100);
  EXPECT_FALSE(credit.covers_message(kLimits, 0));
  EXPECT_TRUE(credit.covers_offer(kLimits, /*is_own=*/false));
}

TEST(CreditTest, ThePeerIsToldWhenHalfOfALimitWasFreed) {
  Credit credit;
  EXPECT_FALSE(credit.is_due(kLimits));
  credit.free_message(100);
  EXPECT_FALSE(credit.is_due(kLimits));
  credit.free_message(100);
  EXPECT_TRUE(credit.is_due(kLimits));
  EXPECT_EQ(credit.freed_bytes(), 2 * (100 + kEagerOverhead));
  credit.note_told();
  EXPECT_FALSE(credit.is_due(kLimits));
  credit.free_offer();
  EXPECT_TRUE(credit.is_due(kLimits));
  EXPECT_EQ(credit.freed_offers(), 1U);
  EXPECT_EQ(credit.freed_bytes(), 0U);
}

TEST(CreditTest, WithLimitsOfNothingNothingIsDueUntilSomethingWasFreed) {
  EXPECT_FALSE(Credit().is_due({.eager_bytes = 0, .offers = 0}));
}

}  // namespace
}  // namespace gradwire::messages::credit_test

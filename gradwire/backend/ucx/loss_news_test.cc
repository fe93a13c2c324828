// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Tests which losses are told to which partner.
#include "gradwire/backend/ucx/loss_news_internal.h"

#include <gtest/gtest.h>

namespace gradwire::ucx {
namespace {

// Tells the partner all that there is to tell. Returns who was lost.
std::vector<std::size_t> tell(LossNews& news, std::size_t partner) {
  std::vector<std::size_t> lost;
  while (const LossNews::Loss* const loss = news.next_for(partner)) {
    lost.push_back(loss->lost);
    news.told(partner);
  }
  return lost;
}

TEST(LossNewsTest, EveryPartnerHearsOfEveryLossOnceWheneverItIsTold) {
  LossNews news(5, false);
  EXPECT_EQ(news.next_for(0), nullptr);
  EXPECT_TRUE(news.add(4, "first"));
  EXPECT_EQ(news.next_for(0)->why, "first");
  EXPECT_EQ(tell(news, 0), (std::vector<std::size_t>{4}));
  EXPECT_TRUE(news.add(2, "second"));
  EXPECT_FALSE(news.add(4, "again"));
  EXPECT_EQ(tell(news, 0), (std::vector<std::size_t>{2}));
  EXPECT_EQ(news.next_for(1)->why, "first");
  EXPECT_EQ(tell(news, 1), (std::vector<std::size_t>{4, 2}));
  EXPECT_EQ(tell(news, 1), (std::vector<std::size_t>{}));
}

TEST(LossNewsTest, WhereAllArePartnersNothingIsNews) {
  LossNews news(3, true);
  EXPECT_FALSE(news.add(1, "gone"));
  EXPECT_EQ(news.next_for(2), nullptr);
}

}  // namespace
}  // namespace gradwire::ucx

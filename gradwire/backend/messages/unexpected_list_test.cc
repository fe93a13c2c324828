// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Tests, against a plain list, which row is found, however many there are and whether there is memory.
#include "gradwire/backend/messages/unexpected_list_internal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "gradwire/backend/messages/refused_memory_test_support.h"

namespace gradwire::messages::unexpected_list_test {
namespace {

class UnexpectedListTest : public ::testing::Test {
 protected:
  void add(int peer, std::uint32_t tag) {
    auto row = std::make_unique<Unexpected>();
    row->peer = peer;
    row->tag = tag;
    rows_.push_back(row.get());
    const long before = std::exchange(allocations_before_a_refusal, refuses_ ? 0 : -1);
    list_.add(std::move(row));
    allocations_before_a_refusal = before;
  }
  void take(Unexpected& row) {
    std::erase(rows_, &row);
    EXPECT_EQ(list_.take(row).get(), &row);
  }
  Unexpected* expected(int peer, std::uint32_t tag) const {
    const auto found = std::find_if(rows_.begin(), rows_.end(), [&](const Unexpected* row) {
      return row->tag == tag && (peer == kAnySource || row->peer == peer);
    });
    return found == rows_.end() ? nullptr : *found;
  }
  // Rows come and go at random, first more come, then more go, until none is left.
  void run_at_random(std::uint32_t peers, std::uint32_t tags) {
    std::mt19937 random(peers * 1000 + tags);
    for (int step = 0; step < 3000 || !rows_.empty(); ++step) {
      const std::uint32_t tag = random() % tags;
      const int peer = static_cast<int>(random() % peers);
      if (random() % 100 < (step < 1500 ? 80U : 20U) && step < 3000) add(peer, tag);
      const int from = random() % 2 == 0 ? kAnySource : peer;
      Unexpected* const found = list_.find(from, tag);
      ASSERT_EQ(found, expected(from, tag)) << "step " << step;
      if (found != nullptr && random() % 4 != 0) take(*found);
      ASSERT_EQ(list_.empty(), rows_.empty());
    }
  }

  bool refuses_ = false;
  UnexpectedList list_;
  std::vector<Unexpected*> rows_;  // in the order in which they came
};

TEST_F(UnexpectedListTest, TheFirstThatCameIsFoundAlsoOfAnyRank) {
  run_at_random(3, 2);
  run_at_random(1, 700);
  run_at_random(40, 40);
  run_at_random(900, 1);
}

TEST_F(UnexpectedListTest, WithoutMemoryForMoreChainsTheSameRowsAreFound) {
  refuses_ = true;
  run_at_random(1, 700);
  run_at_random(40, 40);
}

TEST_F(UnexpectedListTest, TheChainsGoWithTheRows) {
  const auto most = [&] {
    return std::max(UnexpectedList::kFewRows, rows_.size() * UnexpectedList::kChainsOfThreeRows / 3);
  };
  for (std::uint32_t tag = 0; tag < 3000; ++tag) {
    add(0, tag);
    ASSERT_LE(list_.chains(), most()) << rows_.size() << " rows";
  }
  EXPECT_GE(list_.chains(), 3000U / 4);
  while (rows_.size() > 1500) {
    take(*rows_.back());
    ASSERT_LE(list_.chains(), most()) << rows_.size() << " rows";
  }
  list_.for_each([&](Unexpected& row) {
    if (row.tag % 100 != 0) take(row);
  });
  EXPECT_EQ(rows_.size(), 15U);
  EXPECT_LE(list_.chains(), most());
  for (std::uint32_t tag = 0; tag < 1500; tag += 100) EXPECT_EQ(list_.find(0, tag), expected(0, tag));
}

TEST_F(UnexpectedListTest, AnOfferIsFoundByItsNumber) {
  for (int i = 0; i < 200; ++i) {
    add(i % 2, static_cast<std::uint32_t>(i % 5));
    rows_.back()->offer = static_cast<std::uint64_t>(i / 2);  // peers number their offers by themselves; 0: a message
  }
  for (int i = 2; i < 200; ++i) {
    const auto offer = static_cast<std::uint64_t>(i / 2);
    EXPECT_EQ(list_.find_offer(i % 2, static_cast<std::uint32_t>(i % 5), offer), rows_[static_cast<std::size_t>(i)]);
    EXPECT_EQ(list_.find_offer(2, static_cast<std::uint32_t>(i % 5), offer), nullptr);
  }
}

TEST_F(UnexpectedListTest, RowsMayGoWhileAllAreVisited) {
  for (int i = 0; i < 500; ++i) add(i % 3, static_cast<std::uint32_t>(i));
  int visits = 0;
  list_.for_each([&](Unexpected& row) {
    ++visits;
    if (row.peer != 1) take(row);
  });
  EXPECT_EQ(visits, 500);
  for (std::uint32_t tag = 0; tag < 500; ++tag) EXPECT_EQ(list_.find(kAnySource, tag) != nullptr, tag % 3 == 1);
  list_.for_each([&](Unexpected& row) { take(row); });
  EXPECT_TRUE(list_.empty());
}

}  // namespace
}  // namespace gradwire::messages::unexpected_list_test

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Tests that every note has its turn once and in order, in whatever order the notes come.
#include "gradwire/backend/ucx/note_order_internal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace gradwire::ucx {
namespace {

// Brings notes, each with its number as payload, and returns the numbers in the order of their turns.
std::vector<std::uint64_t> bring(NoteOrder& order, const std::vector<std::uint64_t>& numbers) {
  std::vector<std::uint64_t> turns;
  for (const std::uint64_t number : numbers) {
    if (order.is_past(number)) continue;
    Envelope envelope;
    envelope.number = number;
    const std::vector<std::byte> payload(number + 1, static_cast<std::byte>(number));
    if (!order.take_turn(envelope, payload)) continue;
    turns.push_back(number);
    while (const auto note = order.take_next()) {
      turns.push_back(note->envelope.number);
      const std::uint64_t bytes = note->envelope.number + 1;
      EXPECT_EQ(note->payload, std::vector<std::byte>(bytes, static_cast<std::byte>(note->envelope.number)));
    }
  }
  return turns;
}

TEST(NoteOrderTest, InWhateverOrderNotesComeTheirTurnsAreInOrder) {
  std::vector<std::uint64_t> numbers(6);
  std::iota(numbers.begin(), numbers.end(), std::uint64_t{0});
  const std::vector<std::uint64_t> in_order = numbers;
  do {
    NoteOrder order;
    ASSERT_EQ(bring(order, numbers), in_order) << ::testing::PrintToString(numbers);
    ASSERT_TRUE(order.is_past(5));
    ASSERT_FALSE(order.is_past(6));
  } while (std::next_permutation(numbers.begin(), numbers.end()));
}

TEST(NoteOrderTest, ANoteThatComesTwiceHasOneTurn) {
  NoteOrder order;
  EXPECT_EQ(bring(order, {2, 2, 0, 0, 2, 1, 1, 0}), (std::vector<std::uint64_t>{0, 1, 2}));
}

TEST(NoteOrderTest, NothingPassesANoteThatIsMissing) {
  NoteOrder order;
  EXPECT_EQ(bring(order, {3, 0, 2}), (std::vector<std::uint64_t>{0}));
  EXPECT_FALSE(order.take_next().has_value());
  EXPECT_FALSE(order.is_past(3));
  EXPECT_EQ(bring(order, {1}), (std::vector<std::uint64_t>{1, 2, 3}));
}

}  // namespace
}  // namespace gradwire::ucx

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Proves: what goes into a ring comes out, in order and whole, at every offset and across the end; a full ring refuses.
#include "gradwire/backend/shared/max_ranks.h"
#include "gradwire/backend/shared/message_ring_internal.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "gradwire/backend/shared/layout_internal.h"

namespace gradwire::shared::message_ring_test {
namespace {

using messages::Frame;
using messages::FrameKind;
using messages::Payload;

class RingTest : public testing::Test {
 protected:
  static constexpr std::size_t kCapacity = 4096;
  Ring ring() { return {&header_, data_.data(), kCapacity}; }

  RingHeader header_{};
  std::vector<std::byte> data_ = std::vector<std::byte>(kCapacity);
};

std::vector<std::byte> payload_of(std::size_t bytes, unsigned seed) {
  std::vector<std::byte> made(bytes);
  for (std::size_t i = 0; i < bytes; ++i) made[i] = static_cast<std::byte>(seed + i * 7);
  return made;
}

TEST_F(RingTest, AFullRingRefusesAndGoesOnWhenThereIsRoom) {
  Ring writer = ring();
  Ring reader = ring();
  const std::vector<std::byte> payload = payload_of(1000, 1);
  const Frame frame{FrameKind::message, 5, 6, 7, 0, payload.size()};
  int written = 0;
  while (writer.write(frame, payload.data(), payload.size())) ++written;
  EXPECT_EQ(written, 3) << "1000 bytes and a header of 40 go three times into 4096";
  Frame seen{};
  Payload lies;
  ASSERT_TRUE(reader.peek(seen, lies));
  EXPECT_TRUE(reader.pop(seen)) << "the writer waits for room";
  EXPECT_TRUE(writer.write(frame, payload.data(), payload.size()));
  ASSERT_TRUE(reader.peek(seen, lies));
  EXPECT_FALSE(reader.pop(seen)) << "the writer does not wait any more";
}

TEST_F(RingTest, WriterAndReaderInTwoThreadsAgree) {
  constexpr int kFrames = 20000;
  std::thread writer([&] {
    Ring ring = this->ring();
    std::mt19937 random(1);
    for (int i = 0; i < kFrames; ++i) {
      const std::vector<std::byte> payload = payload_of(random() % 900, static_cast<unsigned>(i));
      const Frame frame{FrameKind::message, static_cast<std::uint32_t>(i), 1, 2, 0, payload.size()};
      while (!ring.write(frame, payload.data(), payload.size())) std::this_thread::yield();
    }
  });
  Ring ring = this->ring();
  std::mt19937 random(1);
  int wrong = 0;
  for (int i = 0; i < kFrames; ++i) {
    Frame frame{};
    Payload payload;
    while (!ring.peek(frame, payload)) std::this_thread::yield();
    const std::vector<std::byte> expected = payload_of(random() % 900, static_cast<unsigned>(i));
    std::vector<std::byte> got(payload.size());
    payload.copy_to(got.data());
    ring.pop(frame);
    if (frame.tag != static_cast<std::uint32_t>(i) || got != expected) ++wrong;
  }
  writer.join();
  EXPECT_EQ(wrong, 0);
}

TEST(ChannelLayout, HasWholePagesForEveryNumberOfRanks) {
  for (int size = 1; size <= kMaxRanksOfHost; ++size) {
    const ChannelLayout layout(size);
    EXPECT_EQ(layout.window % 4096, 0U) << size << " ranks";
    EXPECT_EQ(layout.stride % alignof(RankSlot), 0U) << size << " ranks";
  }
}

}  // namespace
}  // namespace gradwire::shared::message_ring_test

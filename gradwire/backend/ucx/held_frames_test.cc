// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Tests that held frames reach the sink in each peer's order, once, whatever the sink refuses.
#include "gradwire/backend/ucx/held_frames_internal.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace gradwire::ucx::held_frames_test {
namespace {

using messages::Frame;

// Takes as many frames of each peer as it may.
class CountingSink final : public messages::FrameSink {
 public:
  explicit CountingSink(std::vector<int> may_take) : may_take_(std::move(may_take)) {}

  bool on_frame(int peer, const Frame& frame, const messages::Payload& payload) override {
    if (throws) throw std::runtime_error("a frame that makes no sense");
    if (may_take_[static_cast<std::size_t>(peer)]-- == 0) {
      may_take_[static_cast<std::size_t>(peer)] = 0;
      return false;
    }
    std::vector<std::byte> bytes(payload.size());
    payload.copy_to(bytes.data());
    EXPECT_EQ(bytes, std::vector<std::byte>(frame.bytes, static_cast<std::byte>(frame.id)));
    taken += std::to_string(peer) + ":" + std::to_string(frame.id) + " ";
    return true;
  }

  std::string taken;  // "PEER:ID " of each frame
  bool throws = false;

 private:
  std::vector<int> may_take_;
};

// The payload is `bytes` times the number.
void add(HeldFrames& frames, std::size_t peer, std::uint64_t id, std::uint64_t bytes = 3) {
  Frame frame;
  frame.id = id;
  frame.bytes = bytes;
  std::vector<std::byte> payload(bytes, static_cast<std::byte>(id));
  frames.add(peer, frame, payload);
  payload.assign(bytes, std::byte{0xff});  // it is the caller's again
}

TEST(HeldFramesTest, EachPeersFramesAreHandedOnInTheirOrder) {
  HeldFrames frames(3);
  for (const auto& [peer, id] : {std::pair{2, 1}, {0, 2}, {2, 3}, {0, 4}, {2, 5}}) {
    add(frames, static_cast<std::size_t>(peer), static_cast<std::uint64_t>(id));
  }
  add(frames, 0, 6, 0);
  CountingSink sink({9, 9, 9});
  EXPECT_TRUE(frames.hand_on(sink));
  EXPECT_EQ(sink.taken, "0:2 0:4 0:6 2:1 2:3 2:5 ");
  EXPECT_TRUE(frames.empty());
}

TEST(HeldFramesTest, AFrameThatIsRefusedAndThoseBehindItStayAndOtherPeersGoOn) {
  HeldFrames frames(3);
  for (std::uint64_t id = 1; id <= 3; ++id) {
    for (std::size_t peer = 0; peer < 3; ++peer) add(frames, peer, id);
  }
  CountingSink some({1, 0, 3});
  EXPECT_TRUE(frames.hand_on(some));
  EXPECT_EQ(some.taken, "0:1 2:1 2:2 2:3 ");
  EXPECT_TRUE(frames.has_of(0));
  EXPECT_TRUE(frames.has_of(1));
  EXPECT_FALSE(frames.has_of(2));
  EXPECT_FALSE(frames.empty());
  CountingSink none({0, 0, 0});
  EXPECT_FALSE(frames.hand_on(none));
  add(frames, 2, 4);
  CountingSink all({9, 9, 9});
  EXPECT_TRUE(frames.hand_on(all));
  EXPECT_EQ(all.taken, "0:2 0:3 1:1 1:2 1:3 2:4 ");
  EXPECT_TRUE(frames.empty());
}

TEST(HeldFramesTest, WithoutFramesTheSinkIsNotAsked) {
  HeldFrames frames(2);
  CountingSink sink({9, 9});
  sink.throws = true;
  EXPECT_FALSE(frames.hand_on(sink));
  EXPECT_TRUE(frames.empty());
}

TEST(HeldFramesTest, AFrameOnWhichTheSinkThrowsIsKept) {
  HeldFrames frames(1);
  add(frames, 0, 1);
  CountingSink sink({9});
  sink.throws = true;
  EXPECT_THROW(frames.hand_on(sink), std::runtime_error);
  EXPECT_TRUE(frames.has_of(0));
  sink.throws = false;
  EXPECT_TRUE(frames.hand_on(sink));
  EXPECT_EQ(sink.taken, "0:1 ");
}

}  // namespace
}  // namespace gradwire::ucx::held_frames_test

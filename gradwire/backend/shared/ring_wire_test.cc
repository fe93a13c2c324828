// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Proves that no frame is slept through, and no room for one.
#include "gradwire/backend/shared/ring_wire_internal.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "gradwire/backend/shared/fixed_world_test_support.h"
#include "gradwire/backend/shared/point_to_point_internal.h"

namespace gradwire::shared::ring_wire_test {
namespace {

using messages::Frame;
using messages::FrameKind;
using messages::Payload;
using std::chrono::seconds;

// Nothing here needs so long, unless a wake-up is lost.
constexpr seconds kLost{60};

Region make_region(std::size_t stride) {
  constexpr std::size_t kPage = 4096;
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(kPage, 2 * stride));
  if (memory == nullptr) throw std::bad_alloc();
  std::fill_n(memory, 2 * stride, std::byte{0});
  return {std::shared_ptr<std::byte>(memory, [](std::byte* all) { std::free(all); }), stride};
}

class CountingSink final : public messages::FrameSink {
 public:
  bool on_frame(int, const Frame& frame, const Payload&) override {
    tags.push_back(frame.tag);
    return true;
  }
  std::vector<std::uint32_t> tags;
};

class RingWireTest : public testing::Test {
 protected:
  static std::shared_ptr<World> world(int rank) {
    return std::make_shared<FixedWorld>(rank, std::vector<int>{::getpid(), ::getpid()});
  }
  static Frame frame(std::uint32_t tag, std::size_t bytes) { return {FrameKind::message, tag, 1, 0, 0, bytes}; }
  bool send(RingWire& from, int to, std::uint32_t tag) {
    if (!from.write(to, frame(tag, payload_.size()), payload_)) return false;
    from.flush();
    return true;
  }

  const Region region_ = make_region(point_to_point_stride(2));
  RingWire first_{world(0), region_};
  RingWire second_{world(1), region_};
  std::vector<std::byte> payload_ = std::vector<std::byte>(1000);
};

// The seconds that `sleep` took.
template <class Sleep>
double time_of(Sleep&& sleep) {
  const auto begin = std::chrono::steady_clock::now();
  sleep();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

TEST_F(RingWireTest, NobodySleepsWhoseFrameCameAfterTheLookAtTheBell) {
  const std::uint32_t seen = second_.bell();
  ASSERT_TRUE(send(first_, 1, 1));
  EXPECT_NE(second_.bell(), seen);
  EXPECT_LT(time_of([&] { second_.sleep(seen, kLost); }), 30);
}

// Reads frames, and sleeps in between.
class Reader final {
 public:
  explicit Reader(RingWire& wire) : wire_(wire) {}
  // Returns whether the next frame had this tag and no wake-up was lost.
  bool await(std::uint32_t tag) {
    while (sink_.tags.empty()) {
      const std::uint32_t seen = wire_.bell();
      if (!wire_.read(sink_) && time_of([&] { wire_.sleep(seen, kLost); }) > 30) return false;
    }
    const bool is_next = sink_.tags == std::vector{tag};
    sink_.tags.clear();
    return is_next;
  }

 private:
  RingWire& wire_;
  CountingSink sink_;
};

TEST_F(RingWireTest, NoFrameIsSleptThrough) {
  // Each waits for the other's next frame: every sleep may fall together with a frame.
  constexpr std::uint32_t kFrames = 20'000;
  std::thread second([&] {
    Reader reader(second_);
    for (std::uint32_t tag = 0; tag < kFrames; tag += 2) {
      ASSERT_TRUE(reader.await(tag));
      ASSERT_TRUE(send(second_, 0, tag + 1));
    }
  });
  Reader reader(first_);
  for (std::uint32_t tag = 0; tag < kFrames && !HasFailure(); tag += 2) {
    EXPECT_TRUE(send(first_, 1, tag));
    EXPECT_TRUE(reader.await(tag + 1));
  }
  second.join();
}

TEST_F(RingWireTest, RoomRingsForTheWriterThatWaitsForIt) {
  std::uint32_t written = 0;
  while (send(first_, 1, written)) ++written;
  const std::uint32_t seen = first_.bell();
  CountingSink sink;
  EXPECT_TRUE(second_.read(sink));
  second_.flush();
  EXPECT_EQ(sink.tags.size(), written);
  EXPECT_LT(time_of([&] { first_.sleep(seen, kLost); }), 30);
  EXPECT_TRUE(send(first_, 1, written));
}

}  // namespace
}  // namespace gradwire::shared::ring_wire_test

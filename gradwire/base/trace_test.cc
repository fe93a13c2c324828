// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/base/trace.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace gradwire::trace {
namespace {

struct Seen {
  std::string name;
  int rank;
  std::uint64_t sequence;
  friend bool operator==(const Seen&, const Seen&) = default;
};

void record(void* context, const Event& event) noexcept {
  static_cast<std::vector<Seen>*>(context)->push_back({event.name, event.rank, event.sequence});
}

class TraceTest : public ::testing::Test {
 protected:
  ~TraceTest() override { set_sink(nullptr, nullptr); }
};

TEST_F(TraceTest, PointsReachTheSinkInOrderWithWhatTheyCarry) {
  std::vector<Seen> seen;
  point("before.the.sink", 0, 1);
  set_sink(record, &seen);
  point("all_reduce.entry", 2, 7);
  point("plain");
  EXPECT_EQ(seen, (std::vector<Seen>{{"all_reduce.entry", 2, 7}, {"plain", -1, 0}}));
}

TEST_F(TraceTest, NothingIsSeenAfterTheSinkIsTakenAway) {
  std::vector<Seen> seen;
  set_sink(record, &seen);
  set_sink(nullptr, nullptr);
  point("later");
  EXPECT_TRUE(seen.empty());
}

TEST_F(TraceTest, ANewSinkTakesTheOldOnesPlace) {
  std::vector<Seen> first;
  std::vector<Seen> second;
  set_sink(record, &first);
  point("one");
  set_sink(record, &second);
  point("two");
  EXPECT_EQ(first, (std::vector<Seen>{{"one", -1, 0}}));
  EXPECT_EQ(second, (std::vector<Seen>{{"two", -1, 0}}));
}

TEST_F(TraceTest, PointsMayBePassedByManyThreads) {
  std::atomic<int> count{0};
  set_sink([](void* context, const Event&) noexcept { ++*static_cast<std::atomic<int>*>(context); }, &count);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      for (int n = 0; n < 1000; ++n) point("busy", 0, static_cast<std::uint64_t>(n));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, 4000);
}

}  // namespace
}  // namespace gradwire::trace

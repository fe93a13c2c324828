// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/base/trace.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <latch>
#include <string>
#include <thread>
#include <vector>

namespace gradwire::trace::trace_test {
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

TEST_F(TraceTest, DetailsReachTheSink) {
  Details seen;
  EXPECT_FALSE(watched());
  set_sink([](void* context, const Event& event) noexcept { *static_cast<Details*>(context) = event.details; }, &seen);
  EXPECT_TRUE(watched());
  point("with.details", 1, 2, {.kind = 3, .bytes = 4, .sent = 5, .lane = 6, .word = "seven"});
  EXPECT_EQ(seen.kind, 3U);
  EXPECT_EQ(seen.bytes, 4U);
  EXPECT_EQ(seen.sent, 5U);
  EXPECT_EQ(seen.lane, 6);
  EXPECT_STREQ(seen.word, "seven");
  point("without");
  EXPECT_EQ(seen.lane, -1);
  EXPECT_EQ(seen.word, nullptr);
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

// A sink that a thread does not leave before it is told to.
struct HeldSink {
  std::latch entered{1};
  std::latch may_leave{1};

  static void on_event(void* context, const Event&) noexcept {
    auto* self = static_cast<HeldSink*>(context);
    self->entered.count_down();
    self->may_leave.wait();
  }
};

TEST_F(TraceTest, ASinkIsTakenAwayWhenNoThreadIsInItAnyMore) {
  HeldSink held;
  set_sink(HeldSink::on_event, &held);
  std::thread passing([] { point("held"); });
  held.entered.wait();
  auto taken = std::async(std::launch::async, [] { set_sink(nullptr, nullptr); });
  EXPECT_EQ(taken.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  held.may_leave.count_down();
  taken.get();
  passing.join();
}

// Each sink is called with its own context only; the thread sanitizer sees a context that goes too early.
TEST_F(TraceTest, SinksMayBeChangedWhileThreadsPassPoints) {
  struct Context {
    int owner;
    std::atomic<int>* wrong;
  };
  const auto sink_of = [](auto owner) -> Sink {
    return [](void* context, const Event&) noexcept {
      const auto* seen = static_cast<const Context*>(context);
      if (seen->owner != decltype(owner)::value) ++*seen->wrong;
    };
  };
  std::atomic<int> wrong{0};
  std::atomic<bool> stop{false};
  std::latch begun{3};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      begun.count_down();
      while (!stop) point("busy");
    });
  }
  begun.wait();
  for (int round = 0; round < 1000; ++round) {
    Context one{1, &wrong};
    Context two{2, &wrong};
    set_sink(sink_of(std::integral_constant<int, 1>()), &one);
    set_sink(sink_of(std::integral_constant<int, 2>()), &two);
    set_sink(nullptr, nullptr);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

// The thread that is in the sink does not exist in the child.
TEST_F(TraceTest, AForkedChildMayTakeTheSinkAwayWhileAThreadOfItsParentIsInIt) {
  HeldSink held;
  set_sink(HeldSink::on_event, &held);
  std::thread passing([] { point("held"); });
  held.entered.wait();
  const pid_t child = ::fork();
  if (child == 0) {
    set_sink(nullptr, nullptr);
    point("later");
    ::_exit(0);
  }
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  held.may_leave.count_down();
  passing.join();
}

}  // namespace
}  // namespace gradwire::trace::trace_test

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What goes to a newcomer waits for the calls of the step, but not for ever; and the memory of its copy of the state.
#include "gradwire/elastic/traffic_watch_internal.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/ddp/ddp_test_support.h"
#include "gradwire/elastic/snapshot_memory_internal.h"

namespace gradwire::traffic_watch_test {
namespace {

using namespace gradwire::testing;
using internal::CallTap;
using internal::SnapshotMemory;
using internal::TrafficWatch;
using internal::YieldingSender;
using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr std::chrono::seconds kGuard{60};
using Make = std::function<std::shared_ptr<Work>()>;

// A call that is under way until end().
class Pending {
 public:
  std::shared_ptr<Work> work() const { return work_from_future(future_); }
  void end() const { future_->markCompleted(c10::IValue()); }
  void fail() const { future_->setError(std::make_exception_ptr(PeerError("it failed", {}))); }

 private:
  const Future future_ = c10::make_intrusive<c10::ivalue::Future>(c10::AnyType::get());
};

std::shared_ptr<Work> make_call(TrafficWatch& watch, const Make& make) {
  GroupCall call = BarrierCall{};
  return watch.call(0, call, make);
}

TEST(TrafficWatchTest, ItIsQuietWhenNoCallIsUnderWay) {
  TrafficWatch watch;
  EXPECT_TRUE(watch.wait_until_quiet(kGuard)) << "nothing was called";
  const Pending first, second;
  make_call(watch, [&] { return first.work(); });
  make_call(watch, [&] { return second.work(); });
  EXPECT_FALSE(watch.wait_until_quiet(milliseconds(5)));
  first.end();
  EXPECT_FALSE(watch.wait_until_quiet(milliseconds(5))) << "the second call is under way";
  std::thread ends([&] { second.fail(); });
  EXPECT_TRUE(watch.wait_until_quiet(kGuard)) << "a call that failed is not under way";
  ends.join();
  make_call(watch, [] { return completed_work({}); });
  EXPECT_TRUE(watch.wait_until_quiet(kGuard));
}

// With a step before of two calls, it is quiet before the first one, soon after the last one, and between them after a
// longer gap.
TEST(TrafficWatchTest, ItIsNotQuietBetweenTheCallsOfAStep) {
  TrafficWatch watch;
  const auto call = [&] { make_call(watch, [] { return completed_work({}); }); };
  watch.begin_step();
  call();
  call();
  watch.begin_step();
  EXPECT_TRUE(watch.wait_until_quiet(kGuard));
  const auto begin = std::chrono::steady_clock::now();
  call();
  EXPECT_TRUE(watch.wait_until_quiet(kGuard)) << "a gap that is long enough";
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(20));
  call();
  EXPECT_TRUE(watch.wait_until_quiet(kGuard));
}

TEST(TrafficWatchTest, CallsThatThrowOrCannotTellTheirEndAreNotUnderWay) {
  TrafficWatch watch;
  EXPECT_THROW(make_call(watch, []() -> std::shared_ptr<Work> { throw PeerError("no", {}); }), PeerError);
  EXPECT_THROW(make_call(watch, []() -> std::shared_ptr<Work> { throw UnsupportedError("no"); }), UnsupportedError);
  const auto without_future = std::make_shared<Work>();
  EXPECT_EQ(make_call(watch, [&] { return without_future; }), without_future);
  EXPECT_TRUE(watch.wait_until_quiet(kGuard));
}

TEST(TrafficWatchTest, ARecorderMakesTheCalls) {
  struct Recorder final : CallTap {
    std::shared_ptr<Work> call(int group, GroupCall&, const Make& make) override {
      groups.push_back(group);
      return make();
    }
    std::vector<int> groups;
  };
  const auto recorder = std::make_shared<Recorder>();
  TrafficWatch watch(recorder);
  const Pending pending;
  GroupCall call = BarrierCall{};
  watch.call(3, call, [&] { return pending.work(); });
  EXPECT_EQ(recorder->groups, std::vector<int>{3});
  EXPECT_FALSE(watch.wait_until_quiet(milliseconds(5)));
  pending.end();
}

// The watch may go before the calls end.
TEST(TrafficWatchTest, CallsOutliveTheWatch) {
  const Pending pending;
  {
    TrafficWatch watch;
    make_call(watch, [&] { return pending.work(); });
  }
  pending.end();
}

// A sender beside a call that is under way until the test ends it.
class YieldingSenderTest : public ::testing::Test {
 protected:
  YieldingSenderTest() {
    make_call(*watch_, [this] { return pending_.work(); });
  }

  const std::shared_ptr<TrafficWatch> watch_ = std::make_shared<TrafficWatch>();
  const Pending pending_;
  YieldingSender sender_{watch_};
};

// With a call that never ends, pieces wait for two seconds in all, and three times as long as they took.
TEST_F(YieldingSenderTest, PiecesGoBesideACallThatDoesNotEnd) {
  const auto begin = std::chrono::steady_clock::now();
  sender_.send([] { std::this_thread::sleep_for(milliseconds(20)); });
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(2020));
  sender_.send([] {});
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(2080));
  int sent = 0;
  for (; sent < 1000; ++sent) sender_.send([] {});
  EXPECT_EQ(sent, 1000);
  pending_.end();
}

TEST_F(YieldingSenderTest, APieceGoesWhenTheCallEnds) {
  bool ended = false;
  std::thread ends([&] {
    std::this_thread::sleep_for(milliseconds(20));
    ended = true;
    pending_.end();
  });
  sender_.send([&] { EXPECT_TRUE(ended); });
  ends.join();
}

// It hurries when a look eight steps later finds it no nearer, and until it is there.
TEST_F(YieldingSenderTest, ANewcomerThatComesNoNearerIsSentWithoutWaiting) {
  YieldingSender other(watch_);
  for (YieldingSender* sender : {&sender_, &other}) {
    sender->begin_step(40);
    sender->send([] {});  // waits for two seconds
  }
  for (std::int64_t behind = 39; behind > 20; --behind) other.begin_step(behind);
  EXPECT_FALSE(other.hurries()) << "it came nearer at each step";
  for (int step = 0; step < 8; ++step) sender_.begin_step(40);
  EXPECT_TRUE(sender_.hurries());
  for (std::int64_t behind = 20; behind > 1; --behind) sender_.begin_step(behind);
  EXPECT_TRUE(sender_.hurries());
  sender_.begin_step(1);
  EXPECT_FALSE(sender_.hurries()) << "it is there";
  pending_.end();
}

// As pieces do which go to a newcomer that takes none before it has done a step.
TEST_F(YieldingSenderTest, ANewcomerWhoseOwnStepsTakeLongIsNotHurried) {
  pending_.end();
  for (int step = 0; step < 32; ++step) {
    sender_.begin_step(20);
    sender_.send([] { std::this_thread::sleep_for(milliseconds(10)); });
  }
  EXPECT_FALSE(sender_.hurries());
}

TEST(SnapshotMemoryTest, CopiesAreEqualContiguousAndKeepTheMemory) {
  const std::vector<at::Tensor> tensors{random_tensor({300, 500}, 1), random_tensor({300, 500}, 2).t(),
                                        random_tensor({3}, 3).to(at::kHalf), at::full({}, 7, at::kLong),
                                        at::empty({0, 3})};
  std::vector<at::Tensor> copies, values;
  {
    SnapshotMemory memory(tensors);
    while (!memory.is_ready()) std::this_thread::yield();
    for (const at::Tensor& tensor : tensors) copies.push_back(memory.copy(tensor));
    copies.push_back(memory.copy(tensors[0]));  // there is no room left
  }
  EXPECT_TRUE(copies.back().equal(tensors[0]));
  for (std::size_t i = 0; i < copies.size(); ++i) {
    const at::Tensor& original = tensors[i % tensors.size()];
    values.push_back(original.clone());
    original.detach().zero_();
    EXPECT_TRUE(copies[i].is_contiguous());
    EXPECT_EQ(copies[i].scalar_type(), original.scalar_type());
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) EXPECT_TRUE(copies[i].equal(values[i])) << "tensor " << i;
}

// Tests of newcomers rely on it: members that have seen a newcomer tell at their next step that they are ready.
TEST(SnapshotMemoryTest, LittleMemoryIsReadyAtOnce) {
  for (int i = 0; i < 100; ++i) {
    SnapshotMemory memory({random_tensor({128, 127}, 1), at::full({}, 7, at::kLong)});
    ASSERT_TRUE(memory.is_ready()) << i;
  }
  EXPECT_TRUE(SnapshotMemory({}).is_ready());
}

TEST(SnapshotMemoryTest, CopiesMayBeMadeBeforeTheMemoryIsReadyAndTheMemoryMayGo) {
  const std::vector<at::Tensor> tensors{random_tensor({3000, 5000}, 1)};
  for (int i = 0; i < 3; ++i) {
    SnapshotMemory memory(tensors);
    EXPECT_TRUE(memory.copy(tensors[0]).equal(tensors[0]));
  }
}

}  // namespace
}  // namespace gradwire::traffic_watch_test

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Proves what the engine does around the matcher, over a wire of one endpoint whose traffic and failures the test
// makes.
#include "gradwire/backend/messages/engine_internal.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "gradwire/base/error.h"

namespace gradwire::messages::engine_test {
namespace {

constexpr Milliseconds kGuard{60'000};

// Two endpoints, of which this is the first; nothing of the second ever comes.
class RestlessWire final : public Wire {
 public:
  struct Plan {
    std::atomic<bool> restless{false};  // frames pass all the time: read() has always moved some
    std::atomic<bool> fails{false};
  };
  explicit RestlessWire(std::shared_ptr<Plan> plan) : plan_(std::move(plan)) {}

  int size() const noexcept override { return 2; }
  std::size_t max_payload() const noexcept override { return 1000; }
  bool write(int, const Frame&, std::span<const std::byte>) override { return true; }
  bool read(FrameSink&) override {
    if (plan_->fails) throw InternalError("the wire broke");
    return plan_->restless;
  }
  void flush() override {}
  std::uint32_t bell() const noexcept override { return bell_; }
  void sleep(std::uint32_t seen, std::chrono::microseconds limit) noexcept override {
    const auto until = std::chrono::steady_clock::now() + limit;
    while (bell_ == seen && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  }
  void wake() noexcept override { ++bell_; }

 private:
  const std::shared_ptr<Plan> plan_;
  std::atomic<std::uint32_t> bell_{0};
};

class EngineTest : public ::testing::Test {
 protected:
  std::shared_ptr<Engine> make(bool waiter_leads = false) {
    Engine::Options options;
    options.limits.eager_message = 100;
    options.rhythm.waiter_leads = waiter_leads;
    return std::make_shared<Engine>(std::make_unique<RestlessWire>(plan_), options);
  }
  static std::shared_ptr<const Members> members() {
    return std::make_shared<Members>(Members{0, std::vector<int>{0, 1}});
  }
  static std::string error_of(const std::function<void()>& call) {
    try {
      call();
    } catch (const std::exception& error) {
      return describe(error);
    }
    return "";
  }

  std::shared_ptr<RestlessWire::Plan> plan_ = std::make_shared<RestlessWire::Plan>();
  char value_ = 0;
};

class AnyRhythm : public EngineTest, public ::testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(WaiterLeads, AnyRhythm, ::testing::Bool());

TEST_P(AnyRhythm, AFailureIsNoticedByTheClockWhateverTheTraffic) {
  plan_->restless = true;
  const auto engine = make(GetParam());
  std::atomic<bool> gone{false};
  engine->add_channel(7, members(), [&](int rank) {
    return gone ? Loss{std::make_exception_ptr(PeerError("rank 1 died", {rank}))} : Loss{};
  });
  const auto receive = engine->irecv(7, &value_, 1, 1, 3);
  const auto anyone = engine->irecv(7, &value_, 1, kAnySource, 3);
  EXPECT_FALSE(receive->done());
  gone = true;
  EXPECT_EQ(error_of([&] { receive->wait(Deadline::after(kGuard)); }), "PeerError: rank 1 died");
  EXPECT_EQ(error_of([&] { anyone->wait(Deadline::after(kGuard)); }), "PeerError: rank 1 died");
  EXPECT_EQ(error_of([&] { engine->isend(7, &value_, 1, 1, 3)->wait(Deadline::after(kGuard)); }),
            "PeerError: rank 1 died");
}

// While another waiter has the wire.
TEST_P(AnyRhythm, AFailureOfWhatNobodyWaitsForIsNoticedByTheClockToo) {
  plan_->restless = true;
  const auto engine = make(GetParam());
  engine->add_channel(7, members(),
                      [](int rank) { return Loss{std::make_exception_ptr(PeerError("rank 1 died", {rank}))}; });
  engine->add_channel(8, members(), nullptr);
  const auto awaited = engine->irecv(8, &value_, 1, 1, 3);
  std::atomic<bool> waits{false};
  std::thread waiter([&] {
    waits = true;
    EXPECT_EQ(error_of([&] { awaited->wait(Deadline::after(kGuard)); }), "AbortedError: the end");
  });
  while (!waits) std::this_thread::yield();
  char value = 0;
  const auto receive = engine->irecv(7, &value, 1, 1, 3);
  const Deadline guard = Deadline::after(kGuard);
  while (!receive->done() && !guard.expired()) std::this_thread::yield();
  EXPECT_TRUE(receive->done());
  engine->close(std::make_exception_ptr(AbortedError("the end")), nullptr);
  waiter.join();
}

TEST_F(EngineTest, AWireThatBreaksEndsEverything) {
  const auto engine = make();
  engine->add_channel(7, members(), nullptr);
  const auto receive = engine->irecv(7, &value_, 1, 1, 3);
  plan_->fails = true;
  EXPECT_EQ(error_of([&] { receive->wait(Deadline::after(kGuard)); }), "InternalError: the wire broke");
  EXPECT_EQ(error_of([&] { engine->isend(7, &value_, 1, 1, 3); }), "InternalError: the wire broke");
  EXPECT_TRUE(engine->is_broken());
}

TEST_F(EngineTest, RequestsOutliveTheirEnginesOwner) {
  auto engine = make();
  engine->add_channel(7, members(), nullptr);
  const auto receive = engine->irecv(7, &value_, 1, 1, 3);
  engine->close(std::make_exception_ptr(AbortedError("the end")), nullptr);
  engine.reset();
  EXPECT_TRUE(receive->done());
  EXPECT_EQ(error_of([&] { receive->wait(Deadline::after(kGuard)); }), "AbortedError: the end");
}

TEST_F(EngineTest, AChannelThatHasEndedEndsItsRequestsAndNoOthers) {
  const auto engine = make();
  engine->add_channel(7, members(), nullptr);
  engine->add_channel(8, members(), nullptr);
  const auto ends = engine->irecv(7, &value_, 1, 1, 3);
  const auto stays = engine->irecv(8, &value_, 1, 1, 3);
  engine->end_channel(7, std::make_exception_ptr(AbortedError("enough")), nullptr);
  EXPECT_EQ(error_of([&] { ends->wait(Deadline::after(kGuard)); }), "AbortedError: enough");
  EXPECT_EQ(error_of([&] { engine->irecv(7, &value_, 1, 1, 3)->wait(Deadline::after(kGuard)); }),
            "AbortedError: enough");
  EXPECT_FALSE(stays->done());
}

}  // namespace
}  // namespace gradwire::messages::engine_test

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The order in which a group's calls run, and on which thread.
#include "gradwire/process_group/executor_internal.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <numeric>
#include <optional>
#include <thread>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/interrupt.h"
#include "gradwire/process_group/ordered_calls_internal.h"
#include "gradwire/process_group/parked_threads_internal.h"

namespace gradwire::internal::executor_test {
namespace {

TEST(Executor, RunsACallThatWaitsOnItsOwnThreadWhenNothingIsUnderWay) {
  Executor executor("test");
  std::thread::id where;
  EXPECT_TRUE(executor.run([&] { where = std::this_thread::get_id(); }));
  EXPECT_EQ(where, std::this_thread::get_id());
}

TEST(Executor, KeepsTheOrderOfCallsOfBothKinds) {
  Executor executor("test");
  std::vector<int> order;  // unguarded: two tasks at a time would be a data race
  for (int i = 0; i < 200; ++i) {
    if (i % 7 == 3) {
      EXPECT_TRUE(executor.run([&, i] { order.push_back(i); }));
    } else {
      EXPECT_TRUE(executor.post([&, i] { order.push_back(i); }));
    }
  }
  executor.finish();
  std::vector<int> expected(200);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
}

TEST(Executor, WhatATaskPostsRunsAfterWhatWasQueuedAndBeforePostReturns) {
  std::promise<void> queued;
  std::promise<void> all;
  Executor executor("test");
  std::vector<int> order;
  std::thread::id outer;
  std::thread::id inner;
  executor.post([&] {
    queued.get_future().wait();
    outer = std::this_thread::get_id();
    order.push_back(1);
    EXPECT_TRUE(executor.post([&] {
      inner = std::this_thread::get_id();
      order.push_back(3);
    }));
    EXPECT_EQ(order.back(), 3);
    EXPECT_TRUE(executor.run([&] { order.push_back(4); }));
    EXPECT_EQ(order.back(), 4);
    all.set_value();
  });
  executor.post([&] { order.push_back(2); });
  queued.set_value();
  all.get_future().wait();  // finish() would refuse what the first task posts
  executor.finish();
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3, 4}));
  EXPECT_EQ(outer, inner);
}

// Else a then-callback that starts a collective would hold its call open for as long as other threads make calls.
TEST(Executor, WhatATaskPostsDoesNotWaitForWhatOtherThreadsPostMeanwhile) {
  Executor executor("test");
  std::atomic<bool> other_ran{false};
  bool ran_before_return = true;
  std::promise<void> returned;
  executor.post([&] {
    executor.post([&] { std::thread([&] { executor.post([&] { other_ran = true; }); }).join(); });
    ran_before_return = other_ran;
    returned.set_value();
  });
  returned.get_future().wait();
  executor.finish();
  EXPECT_FALSE(ran_before_return);
  EXPECT_TRUE(other_ran);
}

TEST(Executor, OneTaskAtATimeWhoeverCalls) {
  Executor executor("test");
  int inside = 0;
  int total = 0;
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        const auto task = [&] {
          EXPECT_EQ(++inside, 1);
          ++total;
          --inside;
        };
        if (i % 2 == 0) {
          executor.run(task);
        } else {
          executor.post(task);
        }
      }
    });
  }
  for (auto& caller : callers) caller.join();
  executor.finish();
  EXPECT_EQ(total, 800);
}

TEST(Executor, HelpKeepsTheOrderAndDoesNothingWhileATaskRunsElsewhere) {
  Executor executor("test");
  std::vector<int> ran;
  std::promise<void> begun;
  std::promise<void> go;
  executor.post([&] {
    begun.set_value();
    go.get_future().wait();
    ran.push_back(0);
  });
  begun.get_future().wait();
  std::array<std::optional<Executor::Place>, 4> places;
  for (int i = 1; i < 4; ++i) {
    places[static_cast<std::size_t>(i)] = executor.post([&ran, i] { ran.push_back(i); }, Executor::Start::soon);
  }
  places[3]->help();  // a task runs elsewhere: nothing to do here
  EXPECT_TRUE(ran.empty());
  go.set_value();
  places[2]->help();
  places[1]->help();  // has run, or is about to on the worker
  executor.finish();
  ASSERT_EQ(ran.size(), 4u);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(ran[static_cast<std::size_t>(i)], i);
}

TEST(Executor, HelpRunsOnTheCallingThread) {
  Executor executor("test");
  int here = 0;
  // The worker may be the first now and then, but not always: it naps.
  for (int i = 0; i < 1000; ++i) {
    const auto place = executor.post(
        [&, caller = std::this_thread::get_id()] { here += std::this_thread::get_id() == caller ? 1 : 0; },
        Executor::Start::soon);
    place->help();
  }
  executor.finish();
  EXPECT_GT(here, 0);
}

TEST(Executor, WhoHelpsLeavesATaskThatIsKeptForTheWorkerAndThoseAfterIt) {
  Executor executor("test");
  // Often: the worker is mostly the first.
  for (int i = 0; i < 1000; ++i) {
    std::thread::id kept, after;
    const auto first = executor.post([&] { kept = std::this_thread::get_id(); }, Executor::Start::soon);
    first->keep_for_worker();
    const auto second = executor.post([&] { after = std::this_thread::get_id(); }, Executor::Start::soon);
    second->help();
    executor.run([] {});  // both have run
    EXPECT_NE(kept, std::this_thread::get_id());
    if (HasFailure()) break;
  }
}

TEST(Executor, ATaskThatMayStartSoonStartsWhereNobodyHelps) {
  Executor executor("test");
  for (int i = 0; i < 20; ++i) {
    std::promise<void> ran;
    executor.post([&] { ran.set_value(); }, Executor::Start::soon);
    ran.get_future().wait();
    std::this_thread::sleep_for(std::chrono::milliseconds(i % 4));  // it naps, or sleeps
  }
}

TEST(Executor, PlacesOutliveTheirExecutor) {
  auto executor = std::make_unique<Executor>("test");
  bool ran = false;
  const auto place = executor->post([&] { ran = true; });
  executor.reset();
  EXPECT_TRUE(ran);
  place->help();
}

TEST(Executor, ClosedOnesRefuseAndFinishWhatTheyHave) {
  std::atomic<int> ran{0};
  std::promise<void> go;
  {
    Executor executor("test");
    executor.post([&] { go.get_future().wait(); });
    for (int i = 0; i < 5; ++i) executor.post([&] { ++ran; });
    executor.close();
    EXPECT_FALSE(executor.post([&] { ran += 100; }));
    EXPECT_FALSE(executor.run([&] { ran += 100; }));
    go.set_value();
  }
  EXPECT_EQ(ran, 5);
}

TEST(Executor, AnInterruptionOfAWaitActsOnceAndTheWaitGoesOnToItsEnd) {
  for (const bool finishes : {false, true}) {
    Executor executor("test");
    std::promise<void> go;
    int interruptions = 0;
    bool ran = false;
    executor.post([&] { go.get_future().wait(); });
    const InterruptCheck before = set_interrupt_check(+[]() noexcept { return true; });
    const auto interrupted = [&] {
      ++interruptions;
      go.set_value();
    };
    if (finishes) {
      executor.finish(interrupted);
    } else {
      EXPECT_TRUE(executor.run([&] { ran = true; }, interrupted));
    }
    set_interrupt_check(before);
    EXPECT_EQ(ran, !finishes);
    EXPECT_EQ(interruptions, 1);
  }
}

// Runs `body` in a child that can start no further thread, and returns whether it succeeded.
bool without_threads(const std::function<bool()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    // The limit binds ordinary users alone.
    constexpr uid_t kNobody = 65534;
    if (::geteuid() == 0 && ::setresuid(kNobody, kNobody, kNobody) != 0) ::_exit(2);
    const rlimit none{0, 0};
    if (::setrlimit(RLIMIT_NPROC, &none) != 0) ::_exit(3);
    ::_exit(body() ? 0 : 1);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status == 0;
}

// The caller's buffers are the caller's again.
TEST(Executor, ATaskWhoseThreadIsRefusedNeverRuns) {
  EXPECT_TRUE(without_threads([] {
    bool ran = false;
    {
      Executor executor("test");
      bool refused = false;
      try {
        executor.post([&] { ran = true; });
      } catch (const ResourceError&) {
        refused = true;
      }
      if (!refused || ran) return false;
      int number = 0;
      if (!executor.run([&] { number = 1; }) || number != 1) return false;
    }
    return !ran;
  }));
}

// Else the group would count as busy for ever, and its end would break off the channel.
TEST(OrderedCalls, ACallWhoseThreadIsRefusedIsNotUnderWay) {
  EXPECT_TRUE(without_threads([] {
    OrderedCalls calls("test");
    try {
      calls.post(
          "call", Outputs::list({}), [](const Outputs&) {}, nullptr);
      return false;
    } catch (const ResourceError&) {
      return !calls.under_way();
    }
  }));
}

TEST(Executor, MayBeDestroyedByItsOwnTask) {
  std::promise<void> go;
  std::promise<void> gone;
  std::atomic<bool> last_ran{false};
  auto executor = std::make_unique<Executor>("test");
  executor->post([&] {
    go.get_future().wait();
    executor->finish();  // on the worker: closes, and does not wait for itself
    executor.reset();
    gone.set_value();
  });
  executor->post([&] { last_ran = true; });
  go.set_value();
  gone.get_future().wait();
  join_parked_threads();
  EXPECT_TRUE(last_ran);
}

}  // namespace
}  // namespace gradwire::internal::executor_test

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The order in which a group's calls run, and on which thread.
#include "gradwire/process_group/executor_internal.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <numeric>
#include <thread>
#include <vector>

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

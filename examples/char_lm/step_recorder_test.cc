// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "examples/char_lm/step_recorder.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>
#include <vector>

#include "gradwire/base/trace.h"

namespace char_lm::step_recorder_test {
namespace {

using gradwire::trace::point;

BucketTimes bucket(Span hook, std::vector<Span> calls, bool on_training_thread) {
  BucketTimes times;
  times.hook = hook;
  times.calls = std::move(calls);
  times.on_training_thread = on_training_thread;
  return times;
}

TEST(Split, OnlyWhatKeepsTheTrainingThreadWaitingIsNoComputation) {
  StepTimes step;
  step.seconds = 10;
  step.wait = {6, 8};
  // On lanes, two at once: the calls cover 3 to 6.5 and 7 to 7.75.
  step.buckets = {bucket({2, 7}, {{3, 5}, {6, 6.5}}, false), bucket({4, 7.9}, {{4, 6}, {7, 7.75}}, false)};
  Split split = split_of(step);
  EXPECT_DOUBLE_EQ(split.compute, 8);
  EXPECT_DOUBLE_EQ(split.communication, 1.25);
  EXPECT_DOUBLE_EQ(split.hook, 0.75);
  // The same hooks on the training thread keep it waiting all the time.
  for (BucketTimes& each : step.buckets) each.on_training_thread = true;
  split = split_of(step);
  EXPECT_DOUBLE_EQ(split.compute, 4);
  EXPECT_DOUBLE_EQ(split.communication, 4.25);
  EXPECT_DOUBLE_EQ(split.hook, 1.75);
  step.buckets.clear();
  step.wait = {};
  EXPECT_DOUBLE_EQ(split_of(step).compute, 10);
}

// Against a count of unit intervals.
TEST(Split, AgreesWithCounting) {
  std::mt19937 random(7);
  constexpr int kLength = 60;
  const auto below = [&](int limit) { return static_cast<int>(random() % static_cast<unsigned>(limit)); };
  for (int round = 0; round < 200; ++round) {
    StepTimes step;
    step.seconds = kLength;
    const int ready = below(kLength);
    step.wait = {static_cast<double>(ready), static_cast<double>(ready + below(kLength - ready + 1))};
    std::vector<bool> blocked(kLength), communicates(kLength);
    const auto mark = [](std::vector<bool>& units, const Span& span) {
      for (int i = static_cast<int>(span.begin); i < static_cast<int>(span.end); ++i)
        units[static_cast<std::size_t>(i)] = true;
    };
    mark(blocked, step.wait);
    for (int i = below(6); i > 0; --i) {
      const int begin = below(kLength - 10);
      std::vector<Span> calls;
      for (int from = begin; from + 3 < begin + 10; from += 3)
        calls.push_back({static_cast<double>(from), static_cast<double>(from + below(4))});
      step.buckets.push_back(bucket({static_cast<double>(begin), begin + 10.0}, calls, below(2) == 0));
      if (step.buckets.back().on_training_thread) mark(blocked, step.buckets.back().hook);
      for (const Span& call : calls) mark(communicates, call);
    }
    double waited = 0;
    double communication = 0;
    for (std::size_t i = 0; i < kLength; ++i) {
      waited += blocked[i] ? 1 : 0;
      communication += blocked[i] && communicates[i] ? 1 : 0;
    }
    const Split split = split_of(step);
    EXPECT_DOUBLE_EQ(split.compute, kLength - waited);
    EXPECT_DOUBLE_EQ(split.communication, communication);
    EXPECT_DOUBLE_EQ(split.hook, waited - communication);
  }
}

void run_hook(StepRecorder& recorder, std::size_t bucket, int calls) {
  const StepRecorder::HookCall call(recorder, bucket, 100);
  for (int i = 0; i < calls; ++i) {
    point("group.call");
    point("group.call");  // what the group calls within
    point("group.return");
    point("group.return");
  }
  recorder.hook_done(bucket, 40);
}

TEST(StepRecorder, CallsBelongToTheHookOfTheirThread) {
  StepRecorder recorder;
  for (int step = 1; step <= 2; ++step) {
    recorder.begin_step();
    recorder.begin_forward();
    recorder.begin_backward();
    point("ddp.launch", 0, 0);
    std::thread lane([&] { run_hook(recorder, 0, 3); });
    point("group.call");  // the program's own
    point("group.return");
    point("ddp.launch", 0, 1);
    run_hook(recorder, 1, 2);
    lane.join();
    recorder.begin_optimizer();
    recorder.end_step();

    const StepTimes& times = recorder.last_step();
    ASSERT_EQ(times.buckets.size(), 2U);
    EXPECT_EQ(times.buckets[0].calls.size(), 3U);
    EXPECT_EQ(times.buckets[1].calls.size(), 2U);
    EXPECT_FALSE(times.buckets[0].on_training_thread);
    EXPECT_TRUE(times.buckets[1].on_training_thread);
    EXPECT_EQ(times.wait.begin, times.buckets[1].ready);
    EXPECT_EQ(times.wait.end, times.backward.end);
    for (const BucketTimes& each : times.buckets) {
      EXPECT_EQ(each.bytes, 100);
      EXPECT_LE(times.backward.begin, each.ready);
      EXPECT_LE(each.ready, each.hook.begin);
      double last = each.hook.begin;
      for (const Span& call : each.calls) {
        EXPECT_LE(last, call.begin);
        EXPECT_LE(call.begin, call.end);
        last = call.end;
      }
      EXPECT_LE(last, each.hook.end);
      EXPECT_LE(each.hook.end, times.backward.end);
    }
    EXPECT_LE(times.optimizer.end, times.seconds);
    EXPECT_EQ(recorder.totals().sent, 80 * step);
  }
}

TEST(StepRecorder, GoesAway) {
  { const StepRecorder recorder; }
  point("ddp.launch", 0, 0);
  EXPECT_EQ(gradwire::trace::internal::sink.load(), nullptr);
}

}  // namespace
}  // namespace char_lm::step_recorder_test

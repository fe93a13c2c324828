// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/observe/step_times.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

namespace gradwire::observe::step_times_test {
namespace {

BucketTimes bucket(Span run, std::int64_t returned, int lane, const std::vector<Span>& calls) {
  BucketTimes times;
  times.run = run;
  times.returned = returned;
  times.lane = lane;
  for (const Span& call : calls) times.calls.push_back({CallKind::all_reduce, 8, 8, call});
  return times;
}

TEST(Split, OnlyWhatKeepsTheTrainingThreadWaitingIsNoComputation) {
  StepTimes step;
  step.whole = {100, 1100};
  step.wait = {700, 900};
  // On lanes, two at once: the calls cover 400 to 750 and 800 to 875.
  step.buckets = {bucket({300, 800}, 800, 0, {{400, 600}, {700, 750}}),
                  bucket({500, 890}, 890, 1, {{500, 700}, {800, 875}})};
  Split split = split_of(step);
  EXPECT_EQ(split.compute, 800);
  EXPECT_EQ(split.communication, 125);
  EXPECT_EQ(split.hook, 75);
  // The same on the thread that trains keeps the thread waiting all the time.
  for (BucketTimes& each : step.buckets) each.lane = -1;
  split = split_of(step);
  EXPECT_EQ(split.compute, 400);
  EXPECT_EQ(split.communication, 425);
  EXPECT_EQ(split.hook, 175);
  step.buckets.clear();
  step.wait = {};
  EXPECT_EQ(split_of(step).compute, 1000);
}

TEST(Split, ABucketThatGoesOnAfterItsReturnBlocksOnlyUntilThen) {
  StepTimes step;
  step.whole = {0, 1000};
  step.wait = {600, 700};
  step.buckets = {bucket({100, 650}, 120, -1, {{105, 115}})};
  const Split split = split_of(step);
  EXPECT_EQ(split.compute, 1000 - 20 - 100);
  EXPECT_EQ(split.communication, 10 + 50);
  EXPECT_EQ(split.hook, 10 + 50);
}

TEST(Split, WaitsWithinABucketAreCommunication) {
  StepTimes step;
  step.whole = {0, 1000};
  step.wait = {600, 800};
  step.buckets = {bucket({100, 800}, 800, 0, {{200, 205}})};
  step.buckets[0].waits = {{650, 750}};
  const Split split = split_of(step);
  EXPECT_EQ(split.communication, 100);
  EXPECT_EQ(split.hook, 100);
}

TEST(Split, EachWaitForAveragesKeepsTheThreadWaiting) {
  StepTimes step;
  step.whole = {0, 1000};
  step.earlier_waits = {{200, 300}, {400, 450}};
  step.wait = {700, 800};
  step.buckets = {bucket({150, 300}, 300, 0, {{250, 300}})};
  const Split split = split_of(step);
  EXPECT_EQ(split.compute, 1000 - 250);
  EXPECT_EQ(split.communication, 50);
  EXPECT_EQ(split.hook, 200);
}

// Another DistributedDataParallel, as PyTorch's, tells of no buckets, and its calls are asynchronous.
TEST(Split, WithoutBucketsAWaitForAveragesIsCommunication) {
  StepTimes step;
  step.whole = {0, 1000};
  step.wait = {700, 900};
  step.calls = {{CallKind::all_reduce, 8, 8, {500, 510}}};
  const Split split = split_of(step);
  EXPECT_EQ(split.compute, 790);
  EXPECT_EQ(split.communication, 210);
  EXPECT_EQ(split.hook, 0);
}

TEST(Totals, SeveralPassesAndNoneAddUpToTheStep) {
  StepTimes step;
  step.whole = {100, 1100};
  StepTotals none;
  add_step(none, step);
  EXPECT_EQ(none.rest, 1000) << "no pass came";
  step.backward = {300, 900};  // the forward pass was before the step
  step.earlier_waits = {{400, 450}};
  step.wait = {800, 900};
  step.rest = {900, 1100};
  StepTotals totals;
  add_step(totals, step);
  EXPECT_EQ(totals.rest, 400);
  EXPECT_EQ(totals.wait, 150);
  EXPECT_EQ(totals.backward, 450);
}

TEST(Totals, WhatComesBeforeTheForwardPassIsRest) {
  StepTimes step;
  step.whole = {0, 1000};
  step.forward = {300, 500};
  step.rest = {900, 1000};
  StepTotals totals;
  add_step(totals, step);
  EXPECT_EQ(totals.rest, 400);
}

TEST(Split, CallsAndWaitsOfTheProgramAreCommunication) {
  StepTimes step;
  step.whole = {0, 1000};
  step.calls = {{CallKind::broadcast, 4, 4, {10, 30}}};
  step.waits = {{20, 50}};
  const Split split = split_of(step);
  EXPECT_EQ(split.communication, 40);
  EXPECT_EQ(split.hook, 0);
  EXPECT_EQ(split.compute, 960);
}

// Against a count of unit intervals.
TEST(Split, AgreesWithCounting) {
  std::mt19937 random(7);
  constexpr int kLength = 60;
  const auto below = [&](int limit) { return static_cast<int>(random() % static_cast<unsigned>(limit)); };
  for (int round = 0; round < 300; ++round) {
    StepTimes step;
    step.whole = {0, kLength};
    const int ready = below(kLength);
    step.wait = {ready, ready + below(kLength - ready + 1)};
    std::vector<bool> blocked(kLength), communicates(kLength);
    const auto mark = [](std::vector<bool>& units, const Span& span) {
      for (auto i = span.begin; i < span.end; ++i) units[static_cast<std::size_t>(i)] = true;
    };
    mark(blocked, step.wait);
    for (int i = below(4); i > 0; --i) {
      const int begin = below(kLength - 5);
      const Span span{begin, begin + below(5)};
      mark(blocked, span);
      mark(communicates, span);
      if (below(2) == 0) {
        step.waits.push_back(span);
      } else {
        step.calls.push_back({CallKind::barrier, 0, 0, span});
      }
    }
    for (int i = below(6); i > 0; --i) {
      const int begin = below(kLength - 10);
      std::vector<Span> calls;
      for (int from = begin; from + 3 < begin + 10; from += 3) calls.push_back({from, from + below(4)});
      const Span run{begin, begin + 10};
      const std::int64_t returned = begin + below(11);
      step.buckets.push_back(bucket(run, returned, below(3) - 1, calls));
      for (const Span& call : calls) mark(communicates, call);
      if (step.buckets.back().lane >= 0) continue;
      mark(blocked, {run.begin, returned});
      mark(communicates, {returned, run.end});
    }
    if (step.buckets.empty()) mark(communicates, step.wait);
    std::int64_t waited = 0;
    std::int64_t communication = 0;
    for (std::size_t i = 0; i < kLength; ++i) {
      waited += blocked[i] ? 1 : 0;
      communication += blocked[i] && communicates[i] ? 1 : 0;
    }
    const Split split = split_of(step);
    EXPECT_EQ(split.compute, kLength - waited);
    EXPECT_EQ(split.communication, communication);
    EXPECT_EQ(split.hook, waited - communication);
  }
}

TEST(StepTotals, AddUp) {
  StepTimes step;
  step.whole = {1000, 2000};
  step.forward = {1000, 1300};
  step.backward = {1300, 1700};
  step.wait = {1600, 1700};
  step.rest = {1700, 2000};
  step.calls = {{CallKind::broadcast, 4, 0, {1710, 1720}}};
  step.buckets = {bucket({1400, 1650}, 1650, 0, {{1450, 1550}})};
  step.buckets[0].sent = 6;
  StepTotals totals;
  for (int i = 0; i < 3; ++i) add_step(totals, step);
  EXPECT_EQ(totals.steps, 3U);
  EXPECT_EQ(totals.whole, 3000);
  EXPECT_EQ(totals.forward, 900);
  EXPECT_EQ(totals.backward, 900);
  EXPECT_EQ(totals.wait, 300);
  EXPECT_EQ(totals.rest, 900);
  EXPECT_EQ(totals.forward + totals.backward + totals.wait + totals.rest, totals.whole);
  EXPECT_EQ(totals.hook, 750);
  EXPECT_EQ(totals.sent, 18U);
  EXPECT_EQ(totals.call_bytes, 36U);
  EXPECT_EQ(totals.split.compute + totals.split.communication + totals.split.hook, totals.whole);
}

}  // namespace
}  // namespace gradwire::observe::step_times_test

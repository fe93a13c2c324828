// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// DiLoCo's workers in jobs that lose members and get new ones: they end with the bits of a serial program that plays
// all workers, with the members of the job.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "gradwire/base/error.h"
#include "gradwire/elastic/state_exchange_internal.h"
#include "gradwire/optim/gossip.h"
#include "tests/elastic/diloco_workers.h"

namespace gradwire::elastic_diloco_test {
namespace {

using namespace gradwire::testing;
using namespace gradwire::testing::diloco;

class ElasticDilocoLossTest : public ::testing::TestWithParam<std::tuple<bool, int, bool>> {};
INSTANTIATE_TEST_SUITE_P(Losses, ElasticDilocoLossTest,
                         ::testing::Combine(::testing::Bool(), ::testing::Values(0, 1, 2), ::testing::Bool()));

TEST_P(ElasticDilocoLossTest, TheExchangeIsDoneAgainByThoseThatAreLeft) {
  const auto [streams, victim, replaced] = GetParam();
  expect_done_again(streams, victim, replaced, [](int) { return Place(); });
}

// With an overlap that is longer than the time between two exchanges, one is under way at each boundary: a worker that
// joins there gets its averages.
TEST(ElasticDilocoTest, AWorkerJoinsAtABoundary) {
  for (const DilocoOptions& schedule :
       {plain(), streaming(), DilocoOptions{.inner_steps = 6, .fragments = 3, .overlap = 3, .mixing = 0.5}}) {
    constexpr std::int64_t kSteps = 400;
    ElasticJob job({.min = 3, .max = 4, .first = 3});
    Workers workers;
    std::atomic<bool> on_the_way{false};
    const BeforeStep before = [&](const At& at) {
      if (at.step.step != 20) return;
      on_the_way = true;  // not before, or the new worker might join at an earlier boundary
      job.decided(membership::change_key(1));
    };
    for (int i = 0; i < 3; ++i) workers.start(job.options(), schedule, kSteps, before);
    while (!on_the_way) std::this_thread::yield();
    workers.start(job.options(), schedule, kSteps);
    const auto& results = workers.join();
    const std::int64_t joined = results.back().first_step;
    EXPECT_GE(joined, 20);
    EXPECT_LT(joined, kSteps) << "the new worker came too late";
    expect_serial(results, schedule, {.newcomer_joins = joined}, kSteps, 4);
  }
}

TEST(ElasticDilocoTest, AWorkerLeavesInGoodOrder) {
  constexpr std::int64_t kSteps = 200;
  ElasticJob job({.min = 1, .max = 3, .first = 3});
  Workers workers;
  std::array<std::atomic<int>, kSteps> calls{};
  const BeforeStep before = [&](const At& at) {
    ++calls.at(static_cast<std::size_t>(at.step.step));
    if (at.worker == 1 && at.step.step == 13) at.elastic.leave();
    if (at.step.step == 20) job.decided(membership::change_key(1));  // the wish has arrived
  };
  for (int i = 0; i < 3; ++i) workers.start(job.options(), streaming(), kSteps, before);
  std::size_t left = 0;
  for (const WorkerResult& result : workers.join()) {
    if (result.end != ElasticEnd::left) {
      EXPECT_EQ(result.error, "");
      continue;
    }
    ++left;
    EXPECT_EQ(result.worker, 1);
    EXPECT_NE(result.error.find("has left its elastic job"), std::string::npos) << result.error;
  }
  EXPECT_EQ(left, 1U);
  // No step was done twice, so no exchange was broken off.
  std::int64_t together = 0;
  while (calls.at(static_cast<std::size_t>(together)) == 3) ++together;
  EXPECT_GE(together, 14);
  for (std::int64_t step = together; step < kSteps; ++step) EXPECT_EQ(calls.at(static_cast<std::size_t>(step)), 2);
}

class ElasticDilocoMemoryTest : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Hooks, ElasticDilocoMemoryTest,
                         ::testing::Values("allreduce", "int4:memory=error_feedback", "random_k:ratio=0.3",
                                           "power_sgd:rank=1,start=2"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
                           return name;
                         });

TEST_P(ElasticDilocoMemoryTest, ExchangesThatBreakEndWithTheBitsOfThoseThatDoNot) {
  for (DilocoOptions schedule : {plain(), streaming()}) {
    schedule.hook = GetParam();
    expect_broken_exchanges_count_once(schedule, [](int) { return Place(); });
  }
}

// EF21 begins again from the mean of the estimates when the ranks change; a job that loses a worker still agrees.
TEST(ElasticDilocoTest, EstimatesOfALostWorkerGo) {
  DilocoOptions schedule = plain();
  schedule.hook = "int8:memory=ef21";
  for (const bool replaced : {false, true})
    expect_one_outcome_without_a_worker(schedule, replaced, [](int) { return Place(); });
}

// The outer state arrives, and then the donor fails to write the rest.
TEST(ElasticDilocoTest, AStateThatDoesNotArriveWholeChangesNothing) {
  run_ranks({"threads"}, 2, [](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const auto elastic = std::make_shared<ElasticGroup>();
    const std::vector<at::Tensor> parameters = weights();
    if (rank == 1) {
      const torch::NoGradGuard no_grad;
      for (at::Tensor parameter : parameters) parameter.add_(1);
    }
    const auto diloco = std::make_shared<DilocoAverager>(parameters, DilocoOptions{.process_group = elastic});
    PostLocalSGDOptimizer optimizer(inner_optimizer(parameters), diloco);
    internal::TrainingState state;
    const auto save = [rank]() -> StatePart {
      if (rank == 0) throw Killed();
      return {};
    };
    state.add(internal::UserState{"position", save, [](const StatePart&) {}});
    state.add({&optimizer, &optimizer, diloco.get()});
    state.leave_group();
    elastic->move_to(group);
    const std::vector<at::Tensor> own = values_of(parameters), outer = values_of(diloco->outer_parameters());
    const std::string error = error_of([&] {
      try {
        internal::exchange_separate_state(*elastic, state, internal::kNoState, /*fresh=*/true);
      } catch (const Killed& killed) {
        elastic->abort(killed.what());
        throw;
      }
    });
    EXPECT_NE(error.find("lost on purpose"), std::string::npos) << error;
    expect_equal_bits(values_of(parameters), own, "own parameters");
    expect_equal_bits(values_of(diloco->outer_parameters()), outer, "outer parameters");
    state.leave_group();
    elastic->move_out();
  });
}

std::unique_ptr<PostLocalSGDOptimizer> plain_optimizer(const std::shared_ptr<ProcessGroup>& group) {
  const std::vector<at::Tensor> parameters = weights();
  return std::make_unique<PostLocalSGDOptimizer>(
      inner_optimizer(parameters),
      std::make_shared<DilocoAverager>(parameters, DilocoOptions{.process_group = group, .inner_steps = 2}));
}

TEST(ElasticDilocoTest, WhatCannotWorkIsRefused) {
  ElasticJob job({.min = 1, .max = 1, .first = 1});
  Elastic elastic(job.options());
  const auto expect_in = [](const std::string& error, const std::string& part) {
    EXPECT_NE(error.find(part), std::string::npos) << error;
  };
  const auto elsewhere = plain_optimizer(std::make_shared<ElasticGroup>());
  expect_in(error_of([&] { elastic.add(*elsewhere); }), "made over another group");
  const auto optimizer = plain_optimizer(elastic.group());
  elastic.add(*optimizer);
  const auto second = plain_optimizer(elastic.group());
  expect_in(error_of([&] { elastic.add(*second); }), "a second optimizer that trains separately");
  expect_in(error_of([&] { elastic.run(3, [](const ElasticStep&) {}); }), "call its step() once");

  expect_in(error_of([&] { GossipAverager gossip(weights(), {.process_group = elastic.group()}); }), "may change");

  Elastic both(job.options());
  DdpOptions options;
  options.process_group = both.group();
  DistributedDataParallel ddp(Mlp(), options);
  const auto separate = plain_optimizer(both.group());
  both.add(*separate);
  expect_in(error_of([&] { both.add(ddp); }), "excludes DistributedDataParallel");
}

TEST(ElasticDilocoTest, AnOptimizerThatIsRefusedIsNotAdded) {
  ElasticJob job({.min = 1, .max = 1, .first = 1});
  Elastic elastic(job.options());
  DdpOptions options;
  options.process_group = elastic.group();
  DistributedDataParallel ddp(Mlp(), options);
  elastic.add(ddp);
  const auto separate = plain_optimizer(elastic.group());
  EXPECT_THROW(elastic.add(*separate), InvalidArgument);
  // With the optimizer, each step would have to step it.
  EXPECT_EQ(elastic.run(2, [](const ElasticStep&) {}), ElasticEnd::finished);
}

// A member with another schedule cannot join.
TEST(ElasticDilocoTest, AnotherScheduleIsRefused) {
  ElasticJob job({.min = 1, .max = 2, .first = 1});
  Workers workers;
  std::atomic<bool> begun{false};
  std::atomic<bool> refused{false};
  workers.start(job.options(), plain(), 20, [&](const At& at) {
    begun = true;
    while (at.step.step == 5 && !refused) std::this_thread::yield();
  });
  while (!begun) std::this_thread::yield();
  WorkerResult other;
  run_worker(
      job.options(), streaming(), 20, [](const At&) {}, other);
  refused = true;
  EXPECT_NE(other.error.find("inner_steps = 9"), std::string::npos) << other.error;
  EXPECT_EQ(workers.join().front().error, "");
}

}  // namespace
}  // namespace gradwire::elastic_diloco_test

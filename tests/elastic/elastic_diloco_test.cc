// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// DiLoCo's workers in jobs that lose members and get new ones: they end with the bits of a serial program that plays
// all workers, with the members of the job.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <list>
#include <optional>
#include <random>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/elastic/elastic.h"
#include "gradwire/elastic/elastic_test_support.h"
#include "gradwire/elastic/state_exchange_internal.h"
#include "gradwire/optim/diloco.h"
#include "gradwire/optim/gossip.h"
#include "gradwire/optim/post_local_sgd_optimizer.h"

namespace gradwire::elastic_diloco_test {
namespace {

using namespace gradwire::testing;

// A worker is its rank in the first epoch, or kNewcomer.
constexpr int kNewcomer = 9;

std::vector<at::Tensor> weights() {
  std::vector<at::Tensor> all{random_tensor({9, 7}, 1).t(), random_tensor({31}, 2), random_tensor({8, 5}, 3),
                              random_tensor({11}, 4).to(at::kDouble), random_tensor({3, 3}, 5)};
  for (at::Tensor& one : all) one.requires_grad_();
  return all;
}

// The fragments of weights(), written down by hand: 63, 31, 40, 11, 9 elements.
std::int64_t fragment_of(std::size_t parameter, std::int64_t fragments) {
  constexpr std::array<std::int64_t, 5> of_three{0, 1, 2, 2, 2};
  return fragments == 1 ? 0 : of_three.at(parameter);
}

void set_gradients(const std::vector<at::Tensor>& parameters, int worker, std::int64_t step) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const int seed = static_cast<int>(1000 * step + 10 * static_cast<std::int64_t>(i)) + worker;
    at::Tensor parameter = parameters[i];
    parameter.mutable_grad() = random_tensor(parameter.sizes(), seed).to(parameter.scalar_type());
  }
}

std::unique_ptr<torch::optim::Optimizer> inner_optimizer(const std::vector<at::Tensor>& parameters) {
  return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
}

std::vector<at::Tensor> values_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> values;
  for (const at::Tensor& tensor : tensors) values.push_back(tensor.detach().clone());
  return values;
}

// What happens to a job of three workers.
struct Story {
  int victim = -1;                                            // -1: nobody is lost
  std::int64_t last_of_victim = 0;                            // the steps that the victim ends
  std::int64_t noticed_at = 0;                                // the number of steps at which the others notice
  bool newcomer_replaces = false;                             // a newcomer is in the epoch after that
  std::optional<std::int64_t> newcomer_joins = std::nullopt;  // or at a boundary, after so many steps
};

// All workers in one thread.
class SerialWorkers {
 public:
  SerialWorkers(DilocoOptions options, Story story) : options_(std::move(options)), story_(std::move(story)) {
    for (int worker = 0; worker < 3; ++worker) add(worker, weights());
    outer_ = values_of(weights());
    for (at::Tensor& one : outer_) {
      one.requires_grad_();
      optimizers_.push_back(std::make_unique<torch::optim::SGD>(
          std::vector<at::Tensor>{one}, torch::optim::SGDOptions(0.7).momentum(0.9).nesterov(true)));
    }
    sent_.resize(outer_.size());
  }

  void run(std::int64_t steps) {
    for (std::int64_t count = 1; count <= steps; ++count) {
      for (const int worker : ranks_) {
        if (worker != story_.victim || count <= story_.last_of_victim) train(worker, count - 1);
      }
      const torch::NoGradGuard no_grad;
      if (options_.overlap == 0) begin(count);
      if (count == story_.noticed_at) lose_victim();
      finish(count);
      if (options_.overlap > 0) begin(count);
      if (story_.newcomer_joins == count) add(kNewcomer, outer_);
    }
  }
  const std::vector<at::Tensor>& own(int worker) const { return own_.at(worker); }
  const std::vector<at::Tensor>& outer() const { return outer_; }

 private:
  // An exchange of one parameter: the differences by worker, and the workers by rank.
  struct Exchange {
    std::int64_t begun_at = -1;
    std::map<int, at::Tensor> differences;
    std::vector<int> ranks;
  };

  void add(int worker, const std::vector<at::Tensor>& from) {
    own_[worker] = values_of(from);
    for (at::Tensor& one : own_[worker]) one.requires_grad_();
    inner_[worker] = inner_optimizer(own_[worker]);
    ranks_.push_back(worker);
  }
  void train(int worker, std::int64_t step) {
    set_gradients(own_[worker], worker, step);
    inner_[worker]->step();
  }
  void lose_victim() {
    std::erase(ranks_, story_.victim);
    if (story_.newcomer_replaces) add(kNewcomer, outer_);
    for (Exchange& exchange : sent_) exchange.ranks = ranks_;  // those that are under way are done again
  }
  void begin(std::int64_t count) {
    for (std::size_t i = 0; i < outer_.size(); ++i) {
      const std::int64_t turn = (fragment_of(i, options_.fragments) + 1) * options_.inner_steps / options_.fragments;
      if (count % options_.inner_steps != turn % options_.inner_steps) continue;
      sent_[i] = {count, {}, ranks_};
      for (const int worker : ranks_) {
        if (worker != story_.victim || count <= story_.last_of_victim)
          sent_[i].differences[worker] = outer_[i].detach() - own_[worker][i].detach();
      }
    }
  }
  static at::Tensor average(const Exchange& exchange) {
    at::Tensor sum;
    const auto all = static_cast<double>(exchange.ranks.size());
    double with_difference = 0;
    for (const int worker : exchange.ranks) {
      const auto found = exchange.differences.find(worker);
      const bool has = found != exchange.differences.end();
      with_difference += has ? 1 : 0;
      const at::Tensor part = (has ? found->second : at::zeros_like(exchange.differences.begin()->second)) / all;
      sum = sum.defined() ? sum + part : part;
    }
    return with_difference == all ? sum : sum * (all / with_difference);
  }
  void finish(std::int64_t count) {
    for (std::size_t i = 0; i < outer_.size(); ++i) {
      if (sent_[i].begun_at < 0 || sent_[i].begun_at + options_.overlap != count) continue;
      outer_[i].mutable_grad() = average(sent_[i]);
      optimizers_[i]->step();
      for (const int worker : ranks_) {
        at::Tensor own = own_[worker][i].detach();
        if (options_.mixing == 0) {
          own.copy_(outer_[i]);
        } else {
          own.mul_(options_.mixing).add_(outer_[i], 1 - options_.mixing);
        }
      }
    }
  }

  const DilocoOptions options_;
  const Story story_;
  std::vector<int> ranks_;
  std::map<int, std::vector<at::Tensor>> own_;
  std::map<int, std::unique_ptr<torch::optim::Optimizer>> inner_;
  std::vector<at::Tensor> outer_;
  std::vector<std::unique_ptr<torch::optim::Optimizer>> optimizers_;
  std::vector<Exchange> sent_;
};

struct At {
  const ElasticStep& step;
  int worker;
  Elastic& elastic;
};
using BeforeStep = std::function<void(const At& at)>;

struct WorkerResult {
  std::string error;
  int worker = -1;
  std::int64_t first_step = 0;
  ElasticEnd end = ElasticEnd::too_late;
  std::vector<at::Tensor> own, outer;  // of a worker that finished
};

void run_worker(const ElasticOptions& options, DilocoOptions schedule, std::int64_t steps, const BeforeStep& before,
                WorkerResult& result) {
  try {
    Elastic elastic(options);
    const std::vector<at::Tensor> parameters = weights();
    schedule.process_group = elastic.group();
    const auto diloco = std::make_shared<DilocoAverager>(parameters, schedule);
    PostLocalSGDOptimizer optimizer(inner_optimizer(parameters), diloco);
    elastic.add(optimizer);
    result.end = elastic.run(steps, [&](const ElasticStep& at) {
      if (result.worker < 0) {
        result.worker = at.epoch == 1 ? at.rank : kNewcomer;
        result.first_step = at.step;
      }
      before({at, result.worker, elastic});
      set_gradients(parameters, result.worker, at.step);
      optimizer.step();
    });
    if (result.end == ElasticEnd::left) result.error = error_of([&] { diloco->average_parameters(parameters); });
    if (result.end != ElasticEnd::finished) return;
    result.own = values_of(parameters);
    result.outer = values_of(diloco->outer_parameters());
  } catch (const Killed&) {
  } catch (const std::exception& error) {
    result.error = error.what();
  }
}

// Members as threads.
class Workers {
 public:
  ~Workers() { join(); }
  void start(
      const ElasticOptions& options, const DilocoOptions& schedule, std::int64_t steps,
      BeforeStep before = [](const At&) {}) {
    results_.emplace_back();
    threads_.emplace_back([=, before = std::move(before), result = &results_.back()] {
      run_worker(options, schedule, steps, before, *result);
    });
  }
  const std::list<WorkerResult>& join() {
    for (auto& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
    return results_;
  }

 private:
  std::list<WorkerResult> results_;
  std::vector<std::thread> threads_;
};

void expect_serial(const std::list<WorkerResult>& results, const DilocoOptions& schedule, const Story& story,
                   std::int64_t steps, std::size_t finishers) {
  SerialWorkers expected(schedule, story);
  expected.run(steps);
  std::size_t finished = 0;
  for (const WorkerResult& result : results) {
    EXPECT_EQ(result.error, "");
    if (result.own.empty()) continue;
    ++finished;
    expect_equal_bits(result.outer, values_of(expected.outer()), concat("outer parameters of worker ", result.worker));
    expect_equal_bits(result.own, values_of(expected.own(result.worker)), concat("worker ", result.worker));
  }
  EXPECT_EQ(finished, finishers);
}

DilocoOptions plain() { return {.inner_steps = 10}; }
DilocoOptions streaming() { return {.inner_steps = 9, .fragments = 3, .overlap = 2, .mixing = 0.5}; }

// A worker is lost between two exchanges, and the others notice in the next one.
class ElasticDilocoLossTest : public ::testing::TestWithParam<std::tuple<bool, int, bool>> {};
INSTANTIATE_TEST_SUITE_P(Losses, ElasticDilocoLossTest,
                         ::testing::Combine(::testing::Bool(), ::testing::Values(0, 1, 2), ::testing::Bool()));

TEST_P(ElasticDilocoLossTest, TheExchangeIsDoneAgainByThoseThatAreLeft) {
  const auto [streams, victim, replaced] = GetParam();
  const DilocoOptions schedule = streams ? streaming() : plain();
  // Plain: the exchanges begin and end after 20 and 30 steps. Streaming: they begin after 21 and 24, and end after 23
  // and 26.
  const Story story{.victim = victim,
                    .last_of_victim = streams ? 23 : 25,
                    .noticed_at = streams ? 26 : 30,
                    .newcomer_replaces = replaced};
  constexpr std::int64_t kSteps = 60;
  ElasticJob job({.min = 2, .max = 3, .first = 3});
  Workers workers;
  std::array<std::atomic<std::int64_t>, kNewcomer + 1> ended{};  // by worker
  std::atomic<bool> killed{false};
  const BeforeStep before = [&, victim = victim, replaced = replaced](const At& at) {
    ended.at(static_cast<std::size_t>(at.worker)) = at.step.step;
    if (at.step.epoch != 1) return;
    if (at.worker == victim && at.step.step == story.last_of_victim) {
      // The others have ended the exchange before.
      for (int other = 0; other < 3; ++other) {
        const std::int64_t far = streams ? 24 : 21;
        while (other != victim && ended.at(static_cast<std::size_t>(other)) < far) std::this_thread::yield();
      }
      killed = true;
      throw Killed();
    }
    while (replaced && at.step.step == story.noticed_at - 1 && joined_members(job.journal()) < 4)
      std::this_thread::yield();
  };
  for (int i = 0; i < 3; ++i) workers.start(job.options(), schedule, kSteps, before);
  while (!killed) std::this_thread::yield();
  if (replaced) workers.start(job.options(), schedule, kSteps, before);
  expect_serial(workers.join(), schedule, story, kSteps, replaced ? 3 : 2);
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

// Exchanges that break at random moments, also while a hook changes its memory, count once: nothing that a hook owes is
// lost or sent twice.
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
  constexpr std::int64_t kSteps = 240;
  for (DilocoOptions schedule : {plain(), streaming()}) {
    schedule.hook = GetParam();
    const auto train = [&](bool breaks) {
      ElasticJob job({.min = 3, .max = 3, .first = 3});
      Workers workers;
      std::array<std::atomic<bool>, kSteps> broken{};
      std::atomic<int> count{0};
      const BeforeStep before = [&](const At& at) {
        const auto step = static_cast<std::size_t>(at.step.step);
        if (!breaks || at.step.step % 4 != 1 || at.worker != at.step.step / 4 % 3 || broken.at(step).exchange(true))
          return;
        std::mt19937 random(static_cast<unsigned>(at.step.step));
        const auto moment = std::chrono::steady_clock::now() + std::chrono::microseconds(random() % 300);
        while (std::chrono::steady_clock::now() < moment) {
        }
        ++count;
        at.elastic.group()->abort("on purpose");
      };
      for (int i = 0; i < 3; ++i) workers.start(job.options(), schedule, kSteps, before);
      std::map<int, WorkerResult> ends;
      for (const WorkerResult& result : workers.join()) {
        EXPECT_EQ(result.error, "");
        ends[result.worker] = result;
      }
      EXPECT_EQ(count > 0, breaks);
      return ends;
    };
    const auto expected = train(false);
    const auto actual = train(true);
    ASSERT_EQ(expected.size(), 3U);
    ASSERT_EQ(actual.size(), 3U);
    for (const auto& [worker, end] : actual) {
      expect_equal_bits(end.outer, expected.at(worker).outer, concat("outer parameters of worker ", worker));
      expect_equal_bits(end.own, expected.at(worker).own, concat("worker ", worker));
    }
  }
}

// EF21 begins again from the mean of the estimates when the ranks change; a job that loses a worker still agrees.
TEST(ElasticDilocoTest, EstimatesOfALostWorkerGo) {
  constexpr std::int64_t kSteps = 100;
  ElasticJob job({.min = 2, .max = 3, .first = 3});
  DilocoOptions schedule = plain();
  schedule.hook = "int8:memory=ef21";
  Workers workers;
  for (int i = 0; i < 3; ++i) {
    workers.start(job.options(), schedule, kSteps, [](const At& at) {
      if (at.worker == 2 && at.step.step == 35) throw Killed();
    });
  }
  std::vector<std::vector<at::Tensor>> outer;
  for (const WorkerResult& result : workers.join()) {
    EXPECT_EQ(result.error, "");
    if (!result.outer.empty()) outer.push_back(result.outer);
  }
  ASSERT_EQ(outer.size(), 2U);
  expect_equal_bits(outer[0], outer[1], "outer parameters");
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

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Workers of DiLoCo in an elastic job whose members are threads, and the serial program that plays all of them.
#pragma once

#include <c10/core/DeviceGuard.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gradwire/elastic/elastic.h"
#include "gradwire/elastic/elastic_test_support.h"
#include "gradwire/optim/diloco.h"
#include "gradwire/optim/post_local_sgd_optimizer.h"

namespace gradwire::testing::diloco {

// A worker is its rank in the first epoch, or kNewcomer.
inline constexpr int kNewcomer = 9;

inline std::vector<at::Tensor> weights(const c10::Device& device = at::kCPU) {
  std::vector<at::Tensor> all{random_tensor({9, 7}, 1).t(), random_tensor({31}, 2), random_tensor({8, 5}, 3),
                              random_tensor({11}, 4).to(at::kDouble), random_tensor({3, 3}, 5)};
  for (at::Tensor& one : all) one = one.to(device).requires_grad_();
  return all;
}

// The fragments of weights(), written down by hand: 63, 31, 40, 11, 9 elements.
inline std::int64_t fragment_of(std::size_t parameter, std::int64_t fragments) {
  constexpr std::array<std::int64_t, 5> of_three{0, 1, 2, 2, 2};
  return fragments == 1 ? 0 : of_three.at(parameter);
}

inline void set_gradients(const std::vector<at::Tensor>& parameters, int worker, std::int64_t step) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const int seed = static_cast<int>(1000 * step + 10 * static_cast<std::int64_t>(i)) + worker;
    at::Tensor parameter = parameters[i];
    parameter.mutable_grad() =
        random_tensor(parameter.sizes(), seed).to(parameter.scalar_type()).to(parameter.device());
  }
}

inline std::unique_ptr<torch::optim::Optimizer> inner_optimizer(const std::vector<at::Tensor>& parameters) {
  return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
}

inline std::vector<at::Tensor> values_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> values;
  for (const at::Tensor& tensor : tensors) values.push_back(tensor.detach().cpu().clone());
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

// Where a worker trains.
struct Place {
  c10::Device device = at::kCPU;
  // Calls its argument: what a step does besides waiting for others.
  std::function<void(const std::function<void()>& work)> run = [](const auto& work) { work(); };
};

struct WorkerResult {
  std::string error;
  int worker = -1;
  std::int64_t first_step = 0;
  ElasticEnd end = ElasticEnd::too_late;
  std::vector<at::Tensor> own, outer;  // of a worker that finished
};

inline void run_worker(const ElasticOptions& options, DilocoOptions schedule, std::int64_t steps,
                       const BeforeStep& before, WorkerResult& result, const Place& place = {}) {
  const c10::OptionalDeviceGuard here(place.device.is_cpu() ? std::nullopt : std::optional(place.device));
  try {
    Elastic elastic(options);
    const std::vector<at::Tensor> parameters = weights(place.device);
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
      place.run([&] {
        set_gradients(parameters, result.worker, at.step);
        optimizer.step();
      });
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
      BeforeStep before = [](const At&) {}, const Place& place = {}) {
    results_.emplace_back();
    threads_.emplace_back([=, before = std::move(before), result = &results_.back()] {
      run_worker(options, schedule, steps, before, *result, place);
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

inline void expect_serial(const std::list<WorkerResult>& results, const DilocoOptions& schedule, const Story& story,
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

inline DilocoOptions plain() { return {.inner_steps = 10}; }
inline DilocoOptions streaming() { return {.inner_steps = 9, .fragments = 3, .overlap = 2, .mixing = 0.5}; }

// A job of three workers, of which `victim` is lost between two exchanges. The others notice in the next one, and do it
// again. `places`: by the number of the worker, 3 for the newcomer, which there is with `replaced`.
inline void expect_done_again(bool streams, int victim, bool replaced, const std::function<Place(int)>& places) {
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
  const BeforeStep before = [&](const At& at) {
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
  for (int i = 0; i < 3; ++i) workers.start(job.options(), schedule, kSteps, before, places(i));
  while (!killed) std::this_thread::yield();
  if (replaced) workers.start(job.options(), schedule, kSteps, before, places(3));
  expect_serial(workers.join(), schedule, story, kSteps, replaced ? 3 : 2);
}

// A job of three workers loses one, gets a new one where it is replaced, and all end with the same outer parameters.
inline void expect_one_outcome_without_a_worker(const DilocoOptions& schedule, bool replaced,
                                                const std::function<Place(int)>& places) {
  constexpr std::int64_t kSteps = 100;
  ElasticJob job({.min = 2, .max = 3, .first = 3});
  Workers workers;
  std::atomic<bool> killed{false};
  const BeforeStep before = [&](const At& at) {
    if (at.worker == 2 && at.step.step == 35) {
      killed = true;
      throw Killed();
    }
    while (replaced && at.step.epoch == 1 && at.step.step == 39 && joined_members(job.journal()) < 4)
      std::this_thread::yield();
  };
  for (int i = 0; i < 3; ++i) workers.start(job.options(), schedule, kSteps, before, places(i));
  while (!killed) std::this_thread::yield();
  if (replaced) workers.start(job.options(), schedule, kSteps, before, places(3));
  std::vector<std::vector<at::Tensor>> outer;
  for (const WorkerResult& result : workers.join()) {
    EXPECT_EQ(result.error, "");
    if (!result.outer.empty()) outer.push_back(result.outer);
  }
  ASSERT_EQ(outer.size(), replaced ? 3U : 2U);
  for (const auto& one : outer) expect_equal_bits(one, outer[0], "outer parameters");
}

// Exchanges that break at random moments, also while a hook changes its memory, count once: nothing that a hook owes is
// lost or sent twice.
inline void expect_broken_exchanges_count_once(const DilocoOptions& schedule, const std::function<Place(int)>& places) {
  constexpr std::int64_t kSteps = 240;
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
    for (int i = 0; i < 3; ++i) workers.start(job.options(), schedule, kSteps, before, places(i));
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

}  // namespace gradwire::testing::diloco

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Jobs that share out the state of Adam among their members: they lose members at all moments of a step, get new ones,
// and end with the bits of the serial program over the plain Adam.
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/serialize.h>

#include <atomic>
#include <list>
#include <numeric>
#include <sstream>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/elastic/elastic.h"
#include "gradwire/elastic/elastic_test_support.h"
#include "gradwire/optim/zero_redundancy_optimizer.h"

namespace gradwire::elastic_zero_test {
namespace {

using namespace gradwire::testing;

// What a test does to a member at some moment of a step; it may throw Killed, or an error that ends the epoch.
enum class Moment { begins, averaged, stepped, shared };
struct At {
  Moment moment;
  const ElasticStep& step;
  Elastic& elastic;
  ZeroRedundancyOptimizer& optimizer;
};
using Disturb = std::function<void(const At& at)>;

// Adam that calls a function when it has stepped this rank's parameters, before anybody else gets them.
class TellingAdam final : public torch::optim::Adam {
 public:
  TellingAdam(std::vector<torch::optim::OptimizerParamGroup> groups, std::function<void()> stepped)
      : Adam(std::move(groups), adam_options()), stepped_(std::move(stepped)) {}
  at::Tensor step(LossClosure closure = nullptr) override {
    at::Tensor loss = Adam::step(std::move(closure));
    stepped_();
    return loss;
  }

 private:
  std::function<void()> stepped_;
};

struct MemberResult {
  std::string error;
  std::vector<at::Tensor> parameters;  // of a member that finished
  std::vector<int> owners_at_end;
};

void run_member(const ElasticOptions& options, std::int64_t steps, bool view, const Disturb& disturb,
                MemberResult& result) {
  try {
    Elastic elastic(options);
    DdpOptions ddp_options;
    ddp_options.process_group = elastic.group();
    Mlp net;
    DistributedDataParallel ddp(net, ddp_options);
    std::function<void()> stepped;
    const OptimizerFactory factory = [&](std::vector<torch::optim::OptimizerParamGroup> groups) {
      return std::make_unique<TellingAdam>(std::move(groups), [&] {
        if (stepped) stepped();
      });
    };
    ZeroRedundancyOptimizer optimizer(ddp.parameters(), factory,
                                      ZeroOptions{.process_group = elastic.group(), .parameters_as_bucket_view = view});
    elastic.add(ddp).add(optimizer);
    const ElasticEnd end = elastic.run(steps, [&](const ElasticStep& at) {
      const auto tell = [&](Moment moment) { disturb({moment, at, elastic, optimizer}); };
      tell(Moment::begins);
      stepped = [&] { tell(Moment::stepped); };
      optimizer.zero_grad();
      loss_of(ddp(samples(at))).backward();
      tell(Moment::averaged);
      optimizer.step();
      tell(Moment::shared);
    });
    if (end != ElasticEnd::finished) return;
    for (const at::Tensor& parameter : net->parameters()) {
      result.parameters.push_back(parameter.detach().clone());
      result.owners_at_end.push_back(optimizer.owner_of(parameter));
    }
  } catch (const Killed&) {
  } catch (const std::exception& error) {
    result.error = error.what();
  }
}

// Members as threads, which a test starts one by one.
class Members {
 public:
  explicit Members(std::int64_t steps, bool view = false) : steps_(steps), view_(view) {}
  ~Members() { join(); }
  void start(
      const ElasticOptions& options, Disturb disturb = [](const At&) {}) {
    results_.emplace_back();
    threads_.emplace_back([this, options, disturb = std::move(disturb), result = &results_.back()] {
      run_member(options, steps_, view_, disturb, *result);
    });
  }
  void join() {
    for (auto& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }
  // `finishers` members end with these parameters, and nobody with an error.
  void expect(const std::vector<at::Tensor>& parameters, std::size_t finishers) {
    join();
    std::size_t finished = 0;
    std::vector<int> owners;
    for (const MemberResult& result : results_) {
      EXPECT_EQ(result.error, "");
      if (result.parameters.empty()) continue;
      expect_equal_bits(result.parameters, parameters, concat("finisher ", finished));
      if (owners.empty()) owners = result.owners_at_end;
      EXPECT_EQ(result.owners_at_end, owners) << "the members agree on who owns which parameter";
      ++finished;
    }
    EXPECT_EQ(finished, finishers);
  }

 private:
  const std::int64_t steps_;
  const bool view_;
  std::list<MemberResult> results_;
  std::vector<std::thread> threads_;
};

OptimizerFactory adam_factory() { return optimizer_factory<torch::optim::Adam>(adam_options()); }

constexpr std::int64_t kSteps = 60;

// The moment at which one of three members is lost; the others go on with its part of the state.
class ElasticZeroLossTest : public ::testing::TestWithParam<std::tuple<Moment, int, bool>> {};
INSTANTIATE_TEST_SUITE_P(Moments, ElasticZeroLossTest,
                         ::testing::Combine(::testing::Values(Moment::begins, Moment::averaged, Moment::stepped,
                                                              Moment::shared),
                                            ::testing::Values(0, 1, 2), ::testing::Bool()));

TEST_P(ElasticZeroLossTest, TheOthersGoOnWithItsPart) {
  const auto [moment, victim, view] = GetParam();
  ElasticJob job({.min = 2, .max = 3, .first = 3});
  Members members(kSteps, view);
  std::atomic<bool> killed{false};
  const Disturb kill = [&, moment = moment, victim = victim](const At& at) {
    if (at.step.step == 20 && at.step.size == 3 && at.step.rank == victim && at.moment == moment &&
        !killed.exchange(true))
      throw Killed();
  };
  for (int i = 0; i < 3; ++i) members.start(job.options(), kill);
  members.join();
  EXPECT_TRUE(killed);
  const std::vector<int> sizes = sizes_of(job.journal(), kSteps);
  EXPECT_EQ(sizes[19], 3);
  EXPECT_EQ(sizes.back(), 2);
  members.expect(serial_parameters(sizes, adam()), 2);
}

// A step that ends on one member with an error when the others have counted it, and one that all lose after they have
// stepped their own parameters: both count once.
TEST(ElasticZeroTest, AStepCountsOnceWhereverItBreaks) {
  for (const Moment moment : {Moment::averaged, Moment::stepped, Moment::shared}) {
    ElasticJob job({.min = 3, .max = 3, .first = 3});
    Members members(kSteps);
    std::atomic<int> broken{0};
    const Disturb disturb = [&](const At& at) {
      if (at.step.step % 10 != 7 || at.moment != moment) return;
      if (at.step.rank != at.step.step / 10 % 3 || broken > at.step.step / 10) return;
      ++broken;
      if (moment == Moment::shared) throw PeerError("on purpose", {});
      at.elastic.group()->abort("on purpose");
    };
    for (int i = 0; i < 3; ++i) members.start(job.options(), disturb);
    members.expect(serial_parameters(std::vector<int>(kSteps, 3), adam()), 3);
    EXPECT_GE(broken, 6);
  }
}

TEST(ElasticZeroTest, AJobShrinksFromFourMembersToOneAndGrowsToFour) {
  constexpr std::int64_t kLong = 600;
  ElasticJob job({.min = 1, .max = 4, .first = 4});
  Members members(kLong);
  std::atomic<bool> alone{false};
  const Disturb last = [&](const At& at) {
    if (at.moment != Moment::begins || at.step.step < 45 || at.step.size != 1 || at.step.epoch > 4) return;
    alone = true;
    while (joined_members(job.journal()) < 7) std::this_thread::yield();
  };
  members.start(job.options(), last);
  for (const int step : {10, 20, 30}) {
    members.start(job.options(), [step](const At& at) {
      if (at.moment == Moment::stepped && at.step.step == step) throw Killed();
    });
  }
  while (!alone) std::this_thread::yield();
  for (int i = 0; i < 3; ++i) members.start(job.options());
  members.join();
  const std::vector<int> sizes = sizes_of(job.journal(), kLong);
  EXPECT_EQ(sizes[5], 4);
  EXPECT_EQ(sizes[40], 1);
  EXPECT_EQ(sizes.back(), 4) << "the new members came too late";
  members.expect(serial_parameters(sizes, adam()), 4);
}

// The parameters that rank `lost` of `size` owns, by number.
std::vector<std::size_t> parameters_of(int lost, int size) {
  Mlp net;
  auto group = make_process_group("threads", std::make_shared<HashStore>(), 0, 1);
  ZeroRedundancyOptimizer optimizer(net->parameters(), adam_factory(), ZeroOptions{.process_group = group});
  std::vector<std::size_t> numbers;
  const std::vector<int> owners = optimizer.owners_among(size);
  for (std::size_t i = 0; i < owners.size(); ++i) {
    if (owners[i] == lost) numbers.push_back(i);
  }
  return numbers;
}

// Adam that forgets the given parameters before the given step.
SerialProgram adam_that_forgets(const std::vector<std::size_t>& parameters, std::int64_t when) {
  SerialProgram program = adam();
  program.before_step = [=](std::int64_t step, torch::optim::Optimizer& optimizer) {
    if (step != when) return;
    for (const std::size_t i : parameters)
      optimizer.state().erase(optimizer.param_groups()[0].params()[i].unsafeGetTensorImpl());
  };
  return program;
}

Disturb kill_ranks(int first, int last, std::int64_t step) {
  return [=](const At& at) {
    if (at.moment == Moment::begins && at.step.step == step && at.step.rank >= first && at.step.rank <= last &&
        at.step.epoch == 1)
      throw Killed();
  };
}

// With the copies of the others, only what the first of two lost neighbours owned is lost; without copies, all that a
// lost member owned. What is lost begins anew.
TEST(ElasticZeroTest, StateThatNobodyHoldsBeginsAnew) {
  for (const bool copies : {true, false}) {
    ElasticJob job({.min = 2, .max = 4, .first = 4});
    ElasticOptions options = job.options();
    options.shard_copies = copies;
    Members members(kSteps);
    for (int i = 0; i < 4; ++i) members.start(options, kill_ranks(1, copies ? 2 : 1, 20));
    members.join();
    const std::vector<int> sizes = sizes_of(job.journal(), kSteps);
    EXPECT_EQ(sizes.back(), copies ? 2 : 3);
    members.expect(serial_parameters(sizes, adam_that_forgets(parameters_of(1, 4), 20)), copies ? 2 : 3);
  }
}

// A newcomer was dealt parts, and dies before its first step counts: those who held them give them again, although
// there are no copies. So does a second newcomer.
TEST(ElasticZeroTest, ANewcomerThatDiesBeforeItsFirstStepTakesNothingAlong) {
  ElasticJob job({.min = 2, .max = 3, .first = 2});
  ElasticOptions options = job.options();
  options.shard_copies = false;
  Members members(kSteps);
  std::atomic<int> came{0};
  const Disturb wait = [&](const At& at) {
    if (at.moment != Moment::begins) return;
    // The first newcomer comes in epoch 1, the second one in the epoch after the death of the first.
    if (at.step.step == 20 && at.step.epoch == 1) {
      came.store(1);
      job.decided(membership::change_key(1));
    }
    if (at.step.step == 40 && at.step.size == 2 && at.step.epoch == 3) {
      came.store(2);
      job.decided(membership::change_key(3));
    }
  };
  std::atomic<int> died{0};
  const Disturb die = [&](const At& at) {
    if (at.moment != Moment::begins) return;
    ++died;
    throw Killed();
  };
  for (int i = 0; i < 2; ++i) members.start(options, wait);
  for (int newcomer = 1; newcomer <= 2; ++newcomer) {
    while (came < newcomer) std::this_thread::yield();
    members.start(options, die);
  }
  members.join();
  EXPECT_EQ(died, 2);
  const std::vector<int> sizes = sizes_of(job.journal(), kSteps);
  EXPECT_EQ(sizes, std::vector<int>(kSteps, 2));
  members.expect(serial_parameters(sizes, adam()), 2);
}

// A checkpoint of the step in which the member was lost brings its part back.
TEST(ElasticZeroTest, StateThatNobodyHoldsComesFromTheCheckpoint) {
  ElasticJob job({.min = 2, .max = 3, .first = 3});
  ElasticOptions options = job.options();
  options.shard_copies = false;
  options.shard_checkpoint = job.journal() + ".zero";
  Members members(kSteps);
  const Disturb disturb = [&](const At& at) {
    if (at.moment == Moment::begins && at.step.step == 20 && at.step.epoch == 1) {
      at.optimizer.consolidate_state(0);
      if (at.step.rank == 0) {
        torch::serialize::OutputArchive archive;
        at.optimizer.save(archive);
        archive.save_to(options.shard_checkpoint);
      }
    }
    if (at.moment == Moment::averaged) kill_ranks(1, 1, 20)({Moment::begins, at.step, at.elastic, at.optimizer});
  };
  for (int i = 0; i < 3; ++i) members.start(options, disturb);
  members.join();
  members.expect(serial_parameters(sizes_of(job.journal(), kSteps), adam()), 2);
}

// libtorch would take the state of a model with as many parameters of other sizes.
TEST(ElasticZeroTest, ACheckpointOfAnotherModelIsNotUsed) {
  ElasticJob job({.min = 2, .max = 3, .first = 3});
  ElasticOptions options = job.options();
  options.shard_copies = false;
  options.shard_checkpoint = job.journal() + ".zero";
  std::vector<at::Tensor> longer;
  for (const at::Tensor& parameter : Mlp()->parameters()) {
    std::vector<std::int64_t> sizes = parameter.sizes().vec();
    ++sizes[0];
    longer.push_back(at::ones(sizes).requires_grad_());
    longer.back().mutable_grad() = at::ones(sizes);
  }
  torch::optim::Adam other(longer, adam_options());
  other.step();
  torch::save(other, options.shard_checkpoint);
  Members members(kSteps);
  for (int i = 0; i < 3; ++i) members.start(options, kill_ranks(1, 1, 20));
  members.join();
  const std::vector<int> sizes = sizes_of(job.journal(), kSteps);
  EXPECT_EQ(sizes.back(), 2);
  members.expect(serial_parameters(sizes, adam_that_forgets(parameters_of(1, 3), 20)), 2);
}

// A state that is loaded in the middle of a job, here one that remembers nothing, is also that of the copies.
TEST(ElasticZeroTest, AStateThatIsLoadedReachesTheCopies) {
  ElasticJob job({.min = 2, .max = 3, .first = 3});
  std::stringstream empty;
  Mlp net;
  torch::save(torch::optim::Adam(net->parameters(), adam_options()), empty);
  Members members(kSteps);
  const Disturb disturb = [&](const At& at) {
    if (at.moment == Moment::begins && at.step.step == 20) {
      torch::serialize::InputArchive archive;
      archive.load_from(empty.str().data(), empty.str().size());
      at.optimizer.load(archive);
    }
    kill_ranks(1, 1, 30)(at);
  };
  for (int i = 0; i < 3; ++i) members.start(job.options(), disturb);
  members.join();
  const std::vector<int> sizes = sizes_of(job.journal(), kSteps);
  EXPECT_EQ(sizes.back(), 2);
  std::vector<std::size_t> all(net->parameters().size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  members.expect(serial_parameters(sizes, adam_that_forgets(all, 20)), 2);
}

// Each member holds its own part and that of the member before it, and no more.
TEST(ElasticZeroTest, AMemberHoldsItsPartAndOneCopy) {
  ElasticJob job({.min = 3, .max = 3, .first = 3});
  Members members(4);
  const Disturb count = [](const At& at) {
    if (at.moment != Moment::begins) return;
    const std::vector<int> owners = at.optimizer.owners_among(3);
    const auto held = at.optimizer.held(ShardedState::Version::counted);
    ASSERT_EQ(held.size(), owners.size());
    for (std::size_t i = 0; i < owners.size(); ++i) {
      const auto expected = owners[i] == at.step.rank             ? ShardedState::Holds::own
                            : (owners[i] + 1) % 3 == at.step.rank ? ShardedState::Holds::copy
                                                                  : ShardedState::Holds::no;
      EXPECT_EQ(held[i], expected) << "parameter " << i << " on rank " << at.step.rank;
    }
  };
  for (int i = 0; i < 3; ++i) members.start(job.options(), count);
  members.expect(serial_parameters(std::vector<int>(4, 3), adam()), 3);
}

TEST(ElasticZeroTest, WhatCannotBeDealtAnewIsRefused) {
  ElasticJob job({.min = 1, .max = 1, .first = 1});
  Elastic elastic(job.options());
  Mlp net;
  ZeroRedundancyOptimizer overlapped(net->parameters(), adam_factory(),
                                     ZeroOptions{.process_group = elastic.group(), .overlap_with_ddp = true});
  EXPECT_THROW(elastic.add(overlapped), UnsupportedError);
  ZeroRedundancyOptimizer elsewhere(net->parameters(), adam_factory(),
                                    ZeroOptions{.process_group = std::make_shared<ElasticGroup>()});
  EXPECT_THROW(elastic.add(elsewhere), InvalidArgument);
}

// An optimizer over the elastic group that was not added would step every parameter on every rank.
TEST(ElasticZeroTest, AnOptimizerThatWasNotAddedSaysSo) {
  ElasticJob job({.min = 2, .max = 2, .first = 2});
  std::vector<std::string> errors(2);
  const auto member = [&](std::size_t index) {
    errors[index] = error_of([&] {
      Elastic elastic(job.options());
      DdpOptions options;
      options.process_group = elastic.group();
      Mlp net;
      DistributedDataParallel ddp(net, options);
      ZeroRedundancyOptimizer optimizer(ddp.parameters(), adam_factory(),
                                        ZeroOptions{.process_group = elastic.group()});
      elastic.add(ddp);
      elastic.run(3, [&](const ElasticStep& at) {
        loss_of(ddp(samples(at))).backward();
        optimizer.step();
      });
    });
  };
  std::thread other([&] { member(1); });
  member(0);
  other.join();
  for (const std::string& error : errors)
    EXPECT_NE(error.find("call Elastic::add(optimizer) before run()"), std::string::npos) << error;
}

}  // namespace
}  // namespace gradwire::elastic_zero_test

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/optim/zero_redundancy_optimizer.h"

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/serialize.h>

#include <numeric>
#include <random>

#include "gradwire/base/error.h"
#include "gradwire/ddp/joinable_step.h"
#include "gradwire/optim/optim_test_support.h"
#include "gradwire/optim/partition_internal.h"

namespace gradwire::testing::zero_redundancy_optimizer_test {
namespace {

using torch::optim::AdamOptions;
using torch::optim::OptimizerParamGroup;
using Groups = std::vector<OptimizerParamGroup>;

std::vector<std::string> group_kinds() { return {"local", "threads"}; }

ZeroOptions zero_options(std::shared_ptr<ProcessGroup> group, bool view = false) {
  return {.process_group = std::move(group), .parameters_as_bucket_view = view};
}

TEST(Partition, IsGreedyBySizeAndBalancedAndStaysWhenGroupsAreAdded) {
  internal::GreedyPartition partition(3);
  EXPECT_EQ(partition.add_group({1, 9, 5, 5, 5, 2}), (std::vector<int>{2, 0, 1, 2, 1, 2}));
  EXPECT_EQ(partition.load(), (std::vector<std::int64_t>{9, 10, 8}));
  EXPECT_EQ(partition.add_group({1, 1, 7}), (std::vector<int>{0, 0, 2}));

  std::mt19937 random(7);
  for (int trial = 0; trial < 300; ++trial) {
    const int ranks = 1 + static_cast<int>(random() % 6);
    internal::GreedyPartition tried(ranks);
    std::vector<std::int64_t> load(static_cast<std::size_t>(ranks), 0);
    std::int64_t total = 0;
    std::int64_t largest = 0;
    for (int group = 0; group < 3; ++group) {
      std::vector<std::int64_t> sizes(random() % 12);
      for (auto& size : sizes) size = static_cast<std::int64_t>(random() % 2 == 0 ? random() % 5 : random() % 1000);
      const auto owners = tried.add_group(sizes);
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        load[static_cast<std::size_t>(owners[i])] += sizes[i];
        total += sizes[i];
        largest = std::max(largest, sizes[i]);
      }
    }
    EXPECT_EQ(tried.load(), load);
    EXPECT_LE(*std::max_element(load.begin(), load.end()), total / ranks + largest) << "trial " << trial;
  }
}

class ZeroKinds : public ::testing::TestWithParam<OptimizerKind> {};
INSTANTIATE_TEST_SUITE_P(Optimizer, ZeroKinds, ::testing::ValuesIn(optimizer_kinds()),
                         [](const auto& info) { return info.param.name; });

// 50 steps; a scheduler and the user change the learning rate on the way.
TEST_P(ZeroKinds, StepsLikeTheOptimizerItselfBitForBit) {
  for (const std::string& kind : group_kinds()) {
    for (const int world : {1, 2, 3}) {
      for (const bool view : {false, true}) {
        run_ranks({kind}, world, [&](int, const std::shared_ptr<ProcessGroup>& group) {
          const auto parameters = many_parameters();
          const auto strides = parameters[1].strides().vec();
          ZeroRedundancyOptimizer zero(parameters, GetParam().factory, zero_options(group, view));
          EXPECT_EQ(parameters[1].strides().vec(), strides);
          const auto expected = many_parameters();
          const auto plain = plain_optimizer(GetParam().factory, expected);
          torch::optim::StepLR zero_schedule(zero, 8, 0.5);
          torch::optim::StepLR plain_schedule(*plain, 8, 0.5);
          for (int step = 0; step < 50; ++step) {
            set_gradients(parameters, world, step);
            set_gradients(expected, world, step);
            zero.step();
            plain->step();
            zero_schedule.step();
            plain_schedule.step();
            if (step == 30) {
              zero.param_groups()[0].options().set_lr(0.03);
              plain->param_groups()[0].options().set_lr(0.03);
            }
            expect_same_bits(parameters, expected, concat(kind, ", world ", world, ", step ", step));
          }
          expect_replicas(*group, parameters, "at the end");
        });
      }
    }
  }
}

// Saved by one world, gone on with by others and by the optimizer itself.
TEST_P(ZeroKinds, StateGoesBetweenWorldsAndThePlainOptimizer) {
  constexpr int kAverageOf = 2;
  const auto expected = many_parameters();
  const auto plain = plain_optimizer(GetParam().factory, expected);
  const auto train_plain = [&](int first, int last) {
    for (int step = first; step < last; ++step) {
      set_gradients(expected, kAverageOf, step);
      plain->step();
    }
  };
  const auto values_of = [](const std::vector<at::Tensor>& parameters) {
    std::vector<at::Tensor> values;
    for (const auto& parameter : parameters) values.push_back(parameter.detach().clone());
    return values;
  };
  plain->param_groups()[0].options().set_lr(1e-3);  // what AdamOptions begins with: must not be taken for "not given"
  train_plain(0, 4);
  std::string state = bytes_of(*plain);
  auto weights = values_of(expected);
  int done = 4;
  for (const int world : {3, 1, 2}) {
    train_plain(done, done + 4);
    std::string next;
    const int to = world - 1;
    run_ranks({world == 2 ? "local" : "threads"}, world, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      const auto parameters = many_parameters();
      ZeroRedundancyOptimizer zero(parameters, GetParam().factory, zero_options(group, world != 3));
      set_gradients(parameters, 1, 99);
      if (world == 2) zero.step();  // what was there before must go
      load_bytes(zero, state);
      {
        const torch::NoGradGuard no_grad;
        for (std::size_t i = 0; i < weights.size(); ++i) parameters[i].detach().copy_(weights[i]);
      }
      for (int step = done; step < done + 4; ++step) {
        set_gradients(parameters, kAverageOf, step);
        zero.step();
      }
      expect_same_bits(parameters, expected, concat("world ", world));
      EXPECT_EQ(zero.param_groups()[0].options().get_lr(), 1e-3);
      zero.consolidate_state(to);
      if (rank == to) {
        next = bytes_of(zero);
      } else {
        EXPECT_THROW((void)bytes_of(zero), InvalidArgument);
      }
    });
    done += 4;
    state = next;
    weights = values_of(expected);
    // The plain optimizer goes on with what the ranks saved, not with what it has.
    const auto resumed = plain_optimizer(GetParam().factory, expected);
    load_bytes(*resumed, state);
    EXPECT_EQ(resumed->param_groups()[0].options().get_lr(), 1e-3);
    ASSERT_EQ(resumed->state().size(), plain->state().size());
    train_plain(done, done + 1);
    const auto once = values_of(expected);
    {
      const torch::NoGradGuard no_grad;
      for (std::size_t i = 0; i < weights.size(); ++i) expected[i].detach().copy_(weights[i]);
    }
    set_gradients(expected, kAverageOf, done);
    resumed->step();
    expect_same_bits(expected, once, concat("plain, after world ", world));
    ++done;
    weights = values_of(expected);
    state = bytes_of(*resumed);
  }
}

// The bytes that a rank's thread holds more than before.
class CountedBytes final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, std::int64_t size, std::size_t, std::size_t, c10::Device) override { held += size; }
  bool memoryProfilingEnabled() const override { return true; }
  std::int64_t held = 0;
};

TEST(Zero, RemembersOneNthAndOneParameter) {
  std::vector<std::int64_t> sizes;
  for (int i = 0; i < 20; ++i) sizes.push_back(1000 + 777 * (i * i % 17));
  const std::int64_t total = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  const std::int64_t largest = *std::max_element(sizes.begin(), sizes.end());
  for (const int world : {1, 2, 3, 4}) {
    for (const bool view : {false, true}) {
      run_ranks({"threads"}, world, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
        std::vector<at::Tensor> parameters;
        for (const std::int64_t size : sizes) parameters.push_back(at::ones({size}).requires_grad_());
        for (const auto& parameter : parameters) parameter.mutable_grad() = at::ones_like(parameter);
        ZeroRedundancyOptimizer zero(parameters, adam_factory(), zero_options(group, view));
        const auto counted = std::make_shared<CountedBytes>();
        for (int step = 0; step < 2; ++step) {
          const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, counted);
          zero.step();
        }
        std::int64_t owned = 0;
        for (const auto& parameter : parameters) owned += zero.owner_of(parameter) == rank ? parameter.numel() : 0;
        // Adam: two numbers of four bytes for each element, and nothing else stays.
        EXPECT_EQ(counted->held, 8 * owned) << "rank " << rank << " of " << world;
        EXPECT_LE(counted->held, 8 * (total / world + largest));
      });
    }
  }
}

TEST(Zero, GroupsHaveTheirOwnOptionsAndMayBeAdded) {
  for (const bool view : {false, true}) {
    run_ranks({"threads"}, 3, [&](int, const std::shared_ptr<ProcessGroup>& group) {
      const auto parameters = many_parameters();
      const auto expected = many_parameters();
      const auto groups_of = [](const std::vector<at::Tensor>& all) {
        Groups groups;
        groups.emplace_back(std::vector<at::Tensor>(all.begin(), all.begin() + 4));
        groups.emplace_back(std::vector<at::Tensor>(all.begin() + 4, all.begin() + 6),
                            std::make_unique<AdamOptions>(AdamOptions(0.5).weight_decay(0.1)));
        return groups;
      };
      const auto factory = adam_factory();
      ZeroRedundancyOptimizer zero(groups_of(parameters), factory, zero_options(group, view));
      const auto plain = factory(groups_of(expected));
      std::vector<int> owners;
      for (std::size_t i = 0; i < 6; ++i) owners.push_back(zero.owner_of(parameters[i]));
      for (int step = 0; step < 9; ++step) {
        if (step == 3) {
          const auto added = [&](const std::vector<at::Tensor>& all) {
            return OptimizerParamGroup({all[6], all[7]}, std::make_unique<AdamOptions>(AdamOptions(0.25)));
          };
          zero.add_param_group(added(parameters));
          plain->add_param_group(added(expected));
        }
        if (step == 5) {  // by the base class, which knows nothing of ranks
          static_cast<torch::optim::Optimizer&>(zero).add_param_group(OptimizerParamGroup({parameters[8]}));
          plain->add_param_group(OptimizerParamGroup({expected[8]}));
        }
        if (step == 7) {
          zero.param_groups()[1].options().set_lr(0.125);
          plain->param_groups()[1].options().set_lr(0.125);
        }
        set_gradients(parameters, 3, step);
        set_gradients(expected, 3, step);
        zero.step();
        plain->step();
        expect_same_bits(parameters, expected, concat("step ", step));
      }
      for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(zero.owner_of(parameters[i]), owners[i]);
      EXPECT_NE(error_of([&] { zero.add_param_group(OptimizerParamGroup({parameters[0]})); }).find("twice"),
                std::string::npos);
      zero.param_groups()[0].params().pop_back();
      EXPECT_NE(error_of([&] { zero.step(); }).find("group 0 changed"), std::string::npos);
    });
  }
}

TEST(Zero, ClosuresRunOnceOnEveryRankAlsoWithoutParameters) {
  run_ranks({"threads"}, 3, [](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const at::Tensor parameter = at::ones({3}).requires_grad_();
    ZeroRedundancyOptimizer zero({parameter}, adam_factory(0.5), zero_options(group));
    EXPECT_EQ(zero.owner_of(parameter), 0);
    EXPECT_EQ(zero.local_optimizer().param_groups()[0].params().size(), rank == 0 ? 1U : 0U);
    int calls = 0;
    const at::Tensor loss = zero.step([&] {
      ++calls;
      zero.zero_grad();
      at::Tensor sum = parameter.sum();
      sum.backward();
      return sum * (rank + 1);
    });
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(loss.item<double>(), 3.0 * (rank + 1));
    EXPECT_TRUE(at::allclose(parameter, at::full({3}, 0.5), 0, 1e-5)) << parameter;
  });
}

// With DDP, whose buckets may be views too.
TEST(Zero, StepsDdpLikeTheOptimizerItself) {
  for (const gradwire::testing::Setup& setup :
       {gradwire::testing::Setup{"threads", 1, true}, gradwire::testing::Setup{"threads", 2, false},
        gradwire::testing::Setup{"local", -1, true}}) {
    run_ranks(setup, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      std::vector<std::vector<at::Tensor>> results;
      for (const int kind : {0, 1, 2}) {
        Mlp net(5, 16);
        auto options = options_for(setup, group);
        options.bucket_cap_mb = 0.002;
        DistributedDataParallel ddp(net, options);
        std::unique_ptr<torch::optim::Optimizer> optimizer;
        if (kind == 0) {
          optimizer = plain_optimizer(adam_factory(), ddp.parameters());
        } else {
          optimizer = std::make_unique<ZeroRedundancyOptimizer>(ddp.parameters(), adam_factory(),
                                                                zero_options(group, kind == 2));
        }
        for (int step = 0; step < 6; ++step) {
          optimizer->zero_grad(step % 2 == 0);
          ddp(random_tensor({4, 16}, 10 * step + rank)).pow(2).mean().backward();
          optimizer->step();
        }
        expect_replicas(*group, ddp.parameters(), concat("kind ", kind));
        results.push_back(ddp.parameters());
      }
      expect_same_bits(results[1], results[0], "ZeRO");
      expect_same_bits(results[2], results[0], "ZeRO with views");
    });
  }
}

// torch::load() and Module::to() give parameters other memory than that in which they were put to travel as they are.
TEST(Zero, FollowsParametersThatWereGivenOtherMemory) {
  enum Change { kLoad, kLoadOnOneRank, kToDouble };
  for (const std::string& kind : group_kinds()) {
    for (const bool view : {false, true}) {
      for (const Change change : {kLoad, kLoadOnOneRank, kToDouble}) {
        run_ranks({kind}, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
          Mlp net(3, 8);
          Mlp alone(3, 8);
          const OptimizerFactory factory = optimizer_kinds().front().factory;
          ZeroRedundancyOptimizer zero(net->parameters(), factory, zero_options(group, view));
          const auto plain = plain_optimizer(factory, alone->parameters());
          for (int step = 0; step < 6; ++step) {
            std::stringstream file;
            if (step == 2) torch::save(net, file);
            if (step == 2 && (change == kLoad || (change == kLoadOnOneRank && rank == 1))) torch::load(net, file);
            if (step == 0 && change == kToDouble) {
              net->to(torch::kDouble);
              alone->to(torch::kDouble);
            }
            set_gradients(net->parameters(), 2, step);
            set_gradients(alone->parameters(), 2, step);
            zero.step();
            plain->step();
            const std::string where = concat(kind, view ? ", views" : "", ", change ", change, ", step ", step);
            expect_same_bits(net->parameters(), alone->parameters(), where);
            expect_replicas(*group, net->parameters(), where);
          }
        });
      }
    }
  }
}

// What the rank with the most batches makes of DDP and the optimizer itself, which ends as the model of all.
TEST(ZeroJoin, RanksThatHaveJoinedGoOnSteppingTheirPart) {
  for (const std::string& kind : group_kinds()) {
    for (const bool by_initial_size : {true, false}) {
      run_ranks({kind}, 3, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
        std::vector<std::vector<at::Tensor>> results;
        for (const int tried : {0, 1, 2}) {
          Mlp net(3, 8);
          auto options = options_for({kind}, group);
          options.bucket_cap_mb = 0.0005;
          DistributedDataParallel ddp(net, options);
          std::unique_ptr<torch::optim::Optimizer> optimizer;
          std::vector<std::reference_wrapper<Joinable>> joinables{ddp};
          if (tried == 0) {
            optimizer = plain_optimizer(adam_factory(), ddp.parameters());
          } else {
            auto zero = std::make_unique<ZeroRedundancyOptimizer>(ddp.parameters(), adam_factory(),
                                                                  zero_options(group, by_initial_size));
            joinables.emplace_back(*zero);
            optimizer = std::move(zero);
          }
          const std::vector<int> batches{3, 6, 1};
          {
            Join join(joinables, {.divide_by_initial_world_size = by_initial_size});
            for (int step = 0; step < batches[static_cast<std::size_t>(rank)]; ++step) {
              const auto backward = [&] {
                optimizer->zero_grad();
                at::Tensor loss = ddp(random_tensor({4, 8}, 10 * step + rank)).pow(2).mean();
                loss.backward();
                return loss;
              };
              if (tried == 2) {
                EXPECT_TRUE(optimizer->step(backward).defined());
              } else {
                backward();
                optimizer->step();
              }
            }
            join.finish();
          }
          expect_replicas(*group, ddp.parameters(), "after the Join");
          set_gradients(ddp.parameters(), 3, 0);  // what ranks remember counts in the next step
          optimizer->step();
          results.push_back(ddp.parameters());
        }
        if (rank != 1) return;  // the plain optimizer saw all steps here alone
        expect_same_bits(results[1], results[0], "ZeRO");
        expect_same_bits(results[2], results[0], "ZeRO with closures");
      });
    }
  }
}

TEST(ZeroJoin, EarlyTerminationLeavesEqualReplicas) {
  run_ranks({"threads"}, 2, [](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const auto parameters = many_parameters();
    ZeroRedundancyOptimizer zero(parameters, adam_factory(), zero_options(group));
    int steps = 0;
    const auto epoch = [&] {
      Join join({zero}, {.throw_on_early_termination = true});
      for (; steps < 2 + rank; ++steps) {
        set_gradients(parameters, 2, steps);
        zero.step();
      }
      join.finish();
    };
    EXPECT_THROW(epoch(), EarlyTermination);
    EXPECT_EQ(steps, 2);
    expect_replicas(*group, parameters, "after the Join");
    zero.step();  // goes on
    expect_replicas(*group, parameters, "after another step");
  });
}

// A model and a sharded optimizer in a Join.
struct JoinedTraining {
  explicit JoinedTraining(const std::shared_ptr<ProcessGroup>& group)
      : ddp(net, options_for({"threads"}, group)), zero(ddp.parameters(), adam_factory(), zero_options(group)) {}
  void backward(int rank, int step) { ddp(random_tensor({4, 8}, 10 * step + rank)).pow(2).mean().backward(); }
  Mlp net{3, 8};
  DistributedDataParallel<Mlp> ddp;
  ZeroRedundancyOptimizer zero;
};

// The other ranks, one of which has joined, are on their way to the exchange of the step.
TEST(ZeroJoin, ARankThatLeavesBeforeItsStepTellsTheOthers) {
  run_ranks({"threads"}, 3, [](int rank, const std::shared_ptr<ProcessGroup>& group) {
    JoinedTraining run(group);
    const std::string error = error_of([&] {
      Join join({run.ddp, run.zero});
      for (int step = 0; step < (rank == 0 ? 1 : 2); ++step) {
        run.backward(rank, step);
        if (rank == 2 && step == 1) return join.abandon("the data are gone");
        run.zero.step();
      }
      join.finish();
    });
    if (rank == 2) {
      EXPECT_EQ(error, "");
    } else {
      EXPECT_NE(error.find("rank 2 left a Join before the step of ZeroRedundancyOptimizer: the data are gone"),
                std::string::npos)
          << error;
    }
    run.backward(rank, 2);  // DDP was not within an iteration, and goes on
    EXPECT_NE(error_of([&] { run.zero.step(); }).find("rank 2 left a Join"), std::string::npos);
    group->barrier()->wait();  // until then rank 2 keeps its objects
  });
}

// A function of the user's own fails on a rank that has joined, between DDP and the optimizer.
TEST(ZeroJoin, ARankThatHasJoinedAndFailsBeforeTheStepTellsTheOthers) {
  run_ranks({"threads"}, 2, [](int rank, const std::shared_ptr<ProcessGroup>& group) {
    JoinedTraining run(group);
    JoinableStep schedule(run.ddp, [] { throw std::runtime_error("no such rate"); });
    const std::string error = error_of([&] {
      Join join({run.ddp, schedule, run.zero});
      for (int step = 0; step <= rank; ++step) {
        run.backward(rank, step);
        run.zero.step();
      }
      join.finish();
    });
    const std::string expected =
        rank == 0 ? "no such rate" : "rank 0 left a Join before the step of ZeroRedundancyOptimizer: no such rate";
    EXPECT_NE(error.find(expected), std::string::npos) << error;
    group->barrier()->wait();
  });
}

TEST(ZeroJoin, AStepThatIsLeftOutIsAnErrorOnceARankHasJoined) {
  run_ranks({"threads"}, 2, [](int rank, const std::shared_ptr<ProcessGroup>& group) {
    JoinedTraining run(group);
    const std::string error = error_of([&] {
      Join join({run.ddp, run.zero});
      for (int step = 0; step < 1 + 2 * rank; ++step) run.backward(rank, step);
      join.finish();
    });
    EXPECT_NE(error.find("rank 1 begins the next one, and joinable 1 of the 2 has not ended"), std::string::npos)
        << error;
    group->barrier()->wait();
  });
}

// All ranks have the error, and nobody waits for a step.
TEST(ZeroJoin, ADisagreementAboutAForwardLeavesTheOptimizerUsable) {
  run_ranks({"threads"}, 3, [](int rank, const std::shared_ptr<ProcessGroup>& group) {
    JoinedTraining run(group);
    const std::string error = error_of([&] {
      Join join({run.ddp, run.zero});
      if (rank > 0) {
        run.ddp.core().set_sync(rank == 1);
        run.backward(rank, 0);
        run.zero.step();
      }
      join.finish();
    });
    EXPECT_NE(error.find("rank 1 ran a synchronized forward"), std::string::npos) << error;
    run.ddp.core().set_sync(true);
    run.backward(rank, 1);
    run.zero.step();
    expect_replicas(*group, run.ddp.parameters(), "after the Join");
  });
}

// Two layers, of which a rank may use one.
struct TwoBranchesImpl : torch::nn::Module {
  TwoBranchesImpl() {
    first = register_module("first", torch::nn::Linear(8, 8));
    second = register_module("second", torch::nn::Linear(8, 8));
  }
  at::Tensor forward(const at::Tensor& x) { return skips_second ? first(x) : second(first(x)); }
  torch::nn::Linear first{nullptr}, second{nullptr};
  bool skips_second = false;
};
TORCH_MODULE(TwoBranches);

// The other ranks wait for the gradients in DDP's groups, and this rank would wait for them in the step.
TEST(Zero, AStepWhileDdpWaitsForGradientsIsRefusedAndTheOthersAreTold) {
  run_ranks({"threads"}, 2, [](int rank, const std::shared_ptr<ProcessGroup>& group) {
    TwoBranches net;
    DistributedDataParallel ddp(net, options_for({"threads"}, group));
    ZeroRedundancyOptimizer zero(ddp.parameters(), adam_factory(), zero_options(group));
    const auto step = [&](int number) {
      zero.zero_grad();
      ddp(random_tensor({4, 8}, 10 * number + rank)).pow(2).mean().backward();
      zero.step();
    };
    step(0);
    step(1);
    net->skips_second = rank == 1;
    const std::string error = error_of([&] { step(2); });
    for (const char* const said : {"did not finish on rank 1 of 2", "got no gradient: 'second.weight', 'second.bias'"})
      EXPECT_NE(error.find(said), std::string::npos) << error;
    EXPECT_EQ(error.find("rank 1 failed") != std::string::npos, rank == 0) << error;
    error_of([&] { group->barrier()->wait(); });
  });
}

// As after the optimizer's own step, also where another rank made it.
TEST(Zero, AGraphThatSavedTheOldValuesIsRefusedOnAllRanks) {
  for (const bool view : {false, true}) {
    run_ranks({"threads"}, 2, [&](int, const std::shared_ptr<ProcessGroup>& group) {
      const at::Tensor parameter = at::ones({3}).requires_grad_();
      ZeroRedundancyOptimizer zero({parameter}, adam_factory(), zero_options(group, view));
      const at::Tensor loss = (parameter * parameter).sum();
      loss.backward({}, /*retain_graph=*/true);
      zero.step();
      EXPECT_NE(error_of([&] { loss.backward(); }).find("modified by an inplace operation"), std::string::npos);
    });
  }
}

TEST(ZeroErrors, BadParametersAndFactoriesAreRefusedBeforeAnyCall) {
  run_local_ranks(1, [](int, const std::shared_ptr<LocalGroup>& group) {
    const at::Tensor good = at::ones({3}).requires_grad_();
    const auto refusal = [&](std::vector<at::Tensor> parameters, OptimizerFactory factory = adam_factory()) {
      return error_of(
          [&] { const ZeroRedundancyOptimizer zero(std::move(parameters), std::move(factory), zero_options(group)); });
    };
    const auto expect_in = [](const std::string& error, const std::string& part) {
      EXPECT_NE(error.find(part), std::string::npos) << error;
    };
    expect_in(refusal({}), "no parameters");
    expect_in(refusal({good, at::Tensor()}), "number 1 is undefined");
    expect_in(refusal({good, good}), "twice");
    expect_in(refusal({good * 2}), "no leaf");
    expect_in(refusal({at::ones({2, 2}).to_sparse().requires_grad_()}), "sparse");
    expect_in(refusal({good}, nullptr), "null");
    expect_in(refusal({good}, [](Groups) { return nullptr; }), "returned no optimizer");
    expect_in(refusal({good}, optimizer_factory<torch::optim::LBFGS>(torch::optim::LBFGSOptions(1))), "LBFGS");
    expect_in(refusal({good},
                      [](Groups) {
                        Groups two;
                        two.emplace_back(std::vector<at::Tensor>{});
                        two.emplace_back(std::vector<at::Tensor>{});
                        return std::make_unique<torch::optim::Adam>(two);
                      }),
              "1 parameter groups and made an optimizer with 2");
    expect_in(error_of([&] {
                Groups two;
                two.emplace_back(std::vector<at::Tensor>{good});
                two.emplace_back(std::vector<at::Tensor>{at::ones({2}).requires_grad_()});
                ZeroOptions options = zero_options(group);
                options.overlap_with_ddp = true;
                const ZeroRedundancyOptimizer zero(two, adam_factory(), options);
              }),
              "one parameter group");
    EXPECT_EQ(group->calls.collectives, 0);

    ZeroRedundancyOptimizer zero({good}, adam_factory(), zero_options(group));
    expect_in(error_of([&] { (void)zero.owner_of(at::ones({1})); }), "not among");
    expect_in(error_of([&] { zero.consolidate_state(1); }), "ranks 0 to 0");
    expect_in(error_of([&] { zero.consolidate_state(-1); }), "ranks 0 to 0");
    expect_in(error_of([&] { (void)bytes_of(zero); }), "consolidate_state(0)");
    zero.consolidate_state();
    (void)bytes_of(zero);
    zero.step();
    expect_in(error_of([&] { (void)bytes_of(zero); }), "consolidate_state(0)");
    const auto other = plain_optimizer(adam_factory(), {good, at::ones({2}).requires_grad_()});
    EXPECT_THROW(load_bytes(zero, bytes_of(*other)), c10::Error);
  });
}

// As many parameters, but of other sizes. libtorch takes such a state, and the step would fail or be wrong.
TEST_P(ZeroKinds, AStateOfAnotherModelIsRefusedAndNothingIsLost) {
  const auto wider = plain_optimizer(GetParam().factory, {random_tensor({5, 8}, 1).requires_grad_()});
  wider->param_groups()[0].params()[0].mutable_grad() = at::ones({5, 8});
  wider->step();
  wider->param_groups()[0].options().set_lr(7);
  const std::string state = bytes_of(*wider);
  run_local_ranks(1, [&](int, const std::shared_ptr<LocalGroup>& group) {
    const at::Tensor parameter = random_tensor({5, 4}, 1).requires_grad_();
    const at::Tensor expected = parameter.detach().clone().requires_grad_();
    const auto plain = plain_optimizer(GetParam().factory, {expected});
    ZeroRedundancyOptimizer zero({parameter}, GetParam().factory, zero_options(group));
    for (int step = 0; step < 4; ++step) {
      parameter.mutable_grad() = random_tensor({5, 4}, 10 + step);
      expected.mutable_grad() = random_tensor({5, 4}, 10 + step);
      if (step == 2) {
        const std::string error = error_of([&] { load_bytes(zero, state); });
        EXPECT_NE(error.find("sizes [5, 8] for parameter 0, which has the sizes [5, 4]"), std::string::npos) << error;
      }
      zero.step();
      plain->step();
    }
    expect_same_bits({parameter}, {expected}, "after the refusal");
  });
}

TEST(ZeroErrors, RanksThatDifferAllThrow) {
  for (const std::string& kind : group_kinds()) {
    run_ranks({kind}, 3, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      std::vector<at::Tensor> parameters = many_parameters();
      std::string error;
      if (rank == 2) parameters.pop_back();
      error = error_of([&] { const ZeroRedundancyOptimizer zero(parameters, adam_factory(), zero_options(group)); });
      EXPECT_NE(error.find("9 parameters"), std::string::npos) << error;
      EXPECT_NE(error.find("on rank 2"), std::string::npos) << error;
      // In other places of memory, the same values would be other parameters' states.
      at::Tensor matrix = at::zeros({4, 3});
      if (rank == 1) matrix = at::zeros({3, 4}).t();
      error = error_of([&] {
        const ZeroRedundancyOptimizer zero({matrix.set_requires_grad(true)}, adam_factory(), zero_options(group, true));
      });
      EXPECT_NE(error.find("strides"), std::string::npos) << error;
      parameters = many_parameters();
      error = error_of(
          [&] { const ZeroRedundancyOptimizer zero(parameters, adam_factory(), zero_options(group, rank == 1)); });
      EXPECT_NE(error.find("on rank 1"), std::string::npos) << error;
      ZeroRedundancyOptimizer zero(parameters, adam_factory(), zero_options(group));
      EXPECT_THROW(zero.consolidate_state(rank == 1 ? 1 : 0), MismatchError);
      zero.consolidate_state(1);  // that was no end
    });
  }
}

// As PyTorch's. The optimizer's own duplicate of the group would still work.
TEST(ZeroErrors, AGroupThatWasShutDownIsRefused) {
  run_ranks({"threads"}, 2, [](int, const std::shared_ptr<ProcessGroup>& group) {
    ZeroRedundancyOptimizer zero(many_parameters(), adam_factory(), zero_options(group));
    zero.step();
    group->shutdown();
    for (const std::string& error : {error_of([&] { zero.step(); }), error_of([&] { zero.consolidate_state(); })}) {
      EXPECT_NE(error.find("ZeroRedundancyOptimizer was shut down on rank"), std::string::npos) << error;
    }
  });
}

TEST(ZeroErrors, AStepThatFailsOnOneRankFailsOnAll) {
  run_ranks({"threads"}, 3, [](int rank, const std::shared_ptr<ProcessGroup>& group) {
    ZeroRedundancyOptimizer zero(many_parameters(), adam_factory(), zero_options(group));
    const std::string error = error_of([&] {
      zero.step([&]() -> at::Tensor {
        if (rank == 1) throw std::runtime_error("the loss is not finite");
        return at::zeros({});
      });
    });
    EXPECT_NE(error.find("the loss is not finite"), std::string::npos) << error;
    group->barrier()->wait();  // the user's own group is not at its end
  });
}

}  // namespace
}  // namespace gradwire::testing::zero_redundancy_optimizer_test

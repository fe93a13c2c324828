// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The sharded optimizer and single optimizers inside the backward pass.
#include "gradwire/optim/zero_hook.h"

#include "gradwire/base/error.h"
#include "gradwire/hooks/default_hooks.h"
#include "gradwire/optim/fused_zero_hook.h"
#include "gradwire/optim/optim_test_support.h"
#include "gradwire/optim/optimizer_in_backward.h"

namespace gradwire::testing::zero_hook_test {
namespace {

constexpr int kWidth = 16;

std::shared_ptr<ZeroRedundancyOptimizer> overlapped(const std::vector<at::Tensor>& parameters,
                                                    const std::shared_ptr<ProcessGroup>& group,
                                                    const OptimizerFactory& factory, bool view = false) {
  return std::make_shared<ZeroRedundancyOptimizer>(
      parameters, factory,
      ZeroOptions{.process_group = group, .parameters_as_bucket_view = view, .overlap_with_ddp = true});
}

DdpOptions small_buckets(const Setup& setup, const std::shared_ptr<ProcessGroup>& group, bool fixed = false,
                         bool searches = false) {
  DdpOptions options = options_for(setup, group);
  options.bucket_cap_mb = 0.002;
  options.static_graph = fixed;
  options.find_unused_parameters = searches;
  return options;
}

// A net in DDP, and the gradients of one step of training.
struct Training {
  Training(const Setup& setup, const std::shared_ptr<ProcessGroup>& group, bool fixed = false, bool searches = false)
      : ddp(net, small_buckets(setup, group, fixed, searches)) {}
  void backward(int rank, int step) {
    ddp.zero_grad();
    ddp(random_tensor({4, kWidth}, 100 * step + rank)).pow(2).mean().backward();
  }
  Mlp net{6, kWidth};
  DistributedDataParallel<Mlp> ddp;
};

// DDP with the plain hook; an optimizer that skips the first steps.
struct Expected : Training {
  Expected(const Setup& setup, const std::shared_ptr<ProcessGroup>& group, const OptimizerFactory& factory,
           bool fixed = false, bool searches = false)
      : Training(setup, group, fixed, searches),
        optimizer(plain_optimizer(factory, ddp.parameters())),
        skipped(fixed ? 3 : 2) {
    ddp.register_comm_hook(make_allreduce_hook());
  }
  void train(int rank, int step) {
    backward(rank, step);
    if (step >= skipped) optimizer->step();
  }
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  int skipped;
};

class ZeroHook : public ::testing::TestWithParam<Setup> {};
INSTANTIATE_TEST_SUITE_P(Setups, ZeroHook, ::testing::ValuesIn(all_setups()), name_of_setup);

TEST_P(ZeroHook, UpdatesLikeTheOptimizerItselfAfterTwoOrThreeIterations) {
  const auto kinds = optimizer_kinds();
  for (const int world : {2, 3}) {
    run_ranks(GetParam(), world, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      std::size_t kind = 0;
      for (const bool interleaved : {true, false}) {
        for (const bool shard : {true, false}) {
          const bool fixed = shard != interleaved;
          const OptimizerFactory& factory = kinds[kind++ % kinds.size()].factory;
          Expected expected(GetParam(), group, factory, fixed);
          Training run(GetParam(), group, fixed);
          const auto zero = overlapped(run.ddp.parameters(), group, factory, world == 3);
          run.ddp.register_comm_hook(make_zero_hook(make_allreduce_hook(), zero, run.ddp.core(), {interleaved, shard}));
          for (int step = 0; step < 7; ++step) {
            if (step == 5) {
              zero->param_groups()[0].options().set_lr(0.003);
              expected.optimizer->param_groups()[0].options().set_lr(0.003);
            }
            // Other memory for one rank's parameters, as torch::load() gives it.
            if (step == 4 && rank == 1) {
              for (const at::Tensor& parameter : run.ddp.parameters()) parameter.set_data(parameter.detach().clone());
            }
            expected.train(rank, step);
            run.backward(rank, step);
            const std::string where = concat("world ", world, interleaved ? ", interleaved" : "",
                                             shard ? ", sharded" : "", fixed ? ", static" : "", ", step ", step);
            expect_same_bits(run.ddp.parameters(), expected.ddp.parameters(), where);
            expect_same_bits(gradients_of(*run.net), gradients_of(*expected.net), where);
          }
          expect_replicas(*group, run.ddp.parameters(), "at the end");
          EXPECT_FALSE(zero->step().defined());
        }
      }
    });
  }
}

// Freezes a layer in the steps from `first` to before 7.
void freeze_layer(Mlp& net, int step, int first) {
  for (auto& parameter : net->linears[2]->parameters()) parameter.set_requires_grad(step < first || step >= 7);
}

// Parameters that are frozen for a while, before and after the buckets have owners: no step moves them.
TEST_P(ZeroHook, LeavesFrozenParametersAlone) {
  for (const OptimizerKind& kind : optimizer_kinds()) {
    for (const int first : {1, 4}) {
      for (const bool shard : {false, true}) {
        const std::string what = concat(kind.name, ", frozen from step ", first, shard ? ", sharded" : "");
        run_ranks(GetParam(), 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
          Expected expected(GetParam(), group, kind.factory, false, /*searches=*/true);
          Training run(GetParam(), group, false, /*searches=*/true);
          const auto zero = overlapped(run.ddp.parameters(), group, kind.factory);
          run.ddp.register_comm_hook(make_zero_hook(make_allreduce_hook(), zero, run.ddp.core(),
                                                    {.interleaved = !shard, .shard_buckets = shard}));
          for (int step = 0; step < 9; ++step) {
            freeze_layer(expected.net, step, first);
            freeze_layer(run.net, step, first);
            expected.train(rank, step);
            run.backward(rank, step);
            expect_same_bits(run.ddp.parameters(), expected.ddp.parameters(), concat(what, ", step ", step));
          }
        });
      }
    }
  }
}

TEST(ZeroHookState, GoesToThePlainOptimizerAndToAnotherWorld) {
  std::string state;
  std::vector<at::Tensor> weights;
  const gradwire::testing::Setup setup{"threads", 2, true};
  run_ranks(setup, 3, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    Training run(setup, group);
    const auto zero = overlapped(run.ddp.parameters(), group, adam_factory());
    run.ddp.register_comm_hook(make_zero_hook(make_allreduce_hook(), zero, run.ddp.core(), {.shard_buckets = true}));
    EXPECT_NE(error_of([&] { zero->consolidate_state(); }).find("before the first update"), std::string::npos);
    EXPECT_NE(error_of([&] { (void)zero->owner_of(run.ddp.parameters()[0]); }).find("first update"), std::string::npos);
    for (int step = 0; step < 6; ++step) run.backward(rank, step);
    zero->consolidate_state(1);
    std::int64_t owned = 0;
    std::int64_t total = 0;
    for (const auto& parameter : run.ddp.parameters()) {
      total += parameter.numel();
      owned += zero->owner_of(parameter) == rank ? parameter.numel() : 0;
    }
    EXPECT_LE(owned, total / 3 + kWidth * kWidth);
    if (rank != 1) return;
    state = bytes_of(*zero);
    for (const auto& parameter : run.ddp.parameters()) weights.push_back(parameter.detach().clone());
  });
  run_ranks(setup, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    Expected expected(setup, group, adam_factory());
    expected.skipped = 1;  // the order of the buckets was not loaded
    load_bytes(*expected.optimizer, state);
    EXPECT_EQ(expected.optimizer->state().size(), weights.size());
    set_values(expected.ddp.parameters(), weights);
    Training run(setup, group);
    set_values(run.ddp.parameters(), weights);
    const auto zero = overlapped(run.ddp.parameters(), group, adam_factory());
    load_bytes(*zero, state);
    run.ddp.register_comm_hook(make_zero_hook(make_allreduce_hook(), zero, run.ddp.core()));
    for (int step = 0; step < 5; ++step) {
      expected.train(rank, step);
      run.backward(rank, step);
      expect_same_bits(run.ddp.parameters(), expected.ddp.parameters(), concat("resumed, step ", step));
    }
    load_bytes(*zero, state);  // and when buckets are known
    load_bytes(*expected.optimizer, state);
    expected.train(rank, 5);
    run.backward(rank, 5);
    expect_same_bits(run.ddp.parameters(), expected.ddp.parameters(), "loaded again");
  });
}

TEST(ZeroHookState, LoadedOnSomeRanksOnlyIsNamedOnAll) {
  for (const bool fused : {false, true}) {
    run_ranks({"threads", 2, true}, 3, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      Training run({"threads", 2, true}, group);
      const auto zero = overlapped(run.ddp.parameters(), group, adam_factory());
      if (rank != 1) load_bytes(*zero, bytes_of(*plain_optimizer(adam_factory(), run.ddp.parameters())));
      run.ddp.register_comm_hook(fused ? make_fused_zero_hook(zero, run.ddp.core())
                                       : make_zero_hook(make_allreduce_hook(), zero, run.ddp.core()));
      const std::string error = error_of([&] {
        for (int step = 0; step < 4; ++step) run.backward(rank, step);
      });
      EXPECT_NE(error.find("ranks 0, 2 have loaded a state and ranks 1 have not"), std::string::npos) << error;
      EXPECT_NE(error.find("on all ranks before the first backward pass"), std::string::npos) << error;
    });
  }
}

// A run that goes on from a saved state, with the order of the buckets, against one that was not interrupted.
TEST_P(ZeroHook, ResumedWithTheOrderOfTheBucketsItStepsFromTheFirstIterationOn) {
  for (const ZeroHookOptions options : {ZeroHookOptions{true, false}, {true, true}, {false, true}}) {
    for (const bool fixed : {false, true}) {
      run_ranks(GetParam(), 3, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
        const auto zero_in = [&](Training& run) {
          const auto zero = overlapped(run.ddp.parameters(), group, adam_factory());
          run.ddp.register_comm_hook(make_zero_hook(make_allreduce_hook(), zero, run.ddp.core(), options));
          return zero;
        };
        Training whole(GetParam(), group, fixed);
        const auto zero = zero_in(whole);
        for (int step = 0; step < 5; ++step) whole.backward(rank, step);
        Training resumed(GetParam(), group, fixed);
        set_values(resumed.ddp.parameters(), whole.ddp.parameters());
        hand_over(*zero, *zero_in(resumed));
        resumed.ddp.core().set_bucket_order(whole.ddp.core().bucket_order());
        for (int step = 5; step < 8; ++step) {
          whole.backward(rank, step);
          resumed.backward(rank, step);
          const std::string where =
              concat(options.interleaved ? "interleaved" : "one step", options.shard_buckets ? ", sharded" : "",
                     fixed ? ", static" : "", ", step ", step);
          expect_same_bits(resumed.ddp.parameters(), whole.ddp.parameters(), where);
          expect_same_bits(gradients_of(*resumed.net), gradients_of(*whole.net), where);
        }
      });
    }
  }
}

TEST(ZeroHookErrors, WhatCannotWorkIsRefused) {
  const gradwire::testing::Setup setup{"threads", 1, false};
  run_ranks(setup, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const auto expect_in = [](const std::string& error, const std::string& part) {
      EXPECT_NE(error.find(part), std::string::npos) << error;
    };
    Training run(setup, group);
    const auto hook = make_allreduce_hook();
    const auto zero = overlapped(run.ddp.parameters(), group, adam_factory());
    expect_in(error_of([&] { (void)make_zero_hook(nullptr, zero, run.ddp.core()); }), "null");
    expect_in(error_of([&] { (void)make_zero_hook(hook, nullptr, run.ddp.core()); }), "null");
    const auto plain = std::make_shared<ZeroRedundancyOptimizer>(run.ddp.parameters(), adam_factory(),
                                                                 ZeroOptions{.process_group = group});
    expect_in(error_of([&] { (void)make_zero_hook(hook, plain, run.ddp.core()); }), "overlap_with_ddp");
    const auto elsewhere = overlapped(run.ddp.parameters(), group->dup(), adam_factory());
    expect_in(error_of([&] { (void)make_zero_hook(hook, elsewhere, run.ddp.core()); }), "same one");
    expect_in(error_of([&] { zero->step([] { return at::zeros({}); }); }), "no closure");
    expect_in(
        error_of([&] { zero->add_param_group(torch::optim::OptimizerParamGroup({at::ones({2}).requires_grad_()})); }),
        "one parameter group");
    expect_in(error_of([&] { (void)zero->local_optimizer(); }), "no one local optimizer");
    (void)make_zero_hook(hook, zero, run.ddp.core());
    expect_in(error_of([&] { (void)make_zero_hook(hook, zero, run.ddp.core()); }), "has a hook already");

    // Not DDP's parameters, all of them.
    auto some = run.ddp.parameters();
    some.pop_back();
    const auto part = overlapped(some, group, adam_factory());
    run.ddp.register_comm_hook(make_zero_hook(hook, part, run.ddp.core()));
    run.backward(rank, 0);
    expect_in(error_of([&] { run.backward(rank, 1); }), "12 parameters in its buckets and the optimizer 11");
  });
}

class InBackward : public ::testing::TestWithParam<Setup> {};
INSTANTIATE_TEST_SUITE_P(Setups, InBackward, ::testing::ValuesIn(all_setups()), name_of_setup);

// Those in the backward step with the averages and lose their gradients; the others keep theirs.
TEST_P(InBackward, StepsEachParameterWithItsAverageAndFreesTheGradient) {
  for (const OptimizerKind& kind : optimizer_kinds()) {
    run_ranks(GetParam(), 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      Training expected(GetParam(), group);
      const auto plain = plain_optimizer(kind.factory, expected.ddp.parameters());
      Training run(GetParam(), group);
      auto early = run.ddp.parameters();
      const std::vector<at::Tensor> late{early[2], early[7]};
      early.erase(early.begin() + 7);
      early.erase(early.begin() + 2);
      const auto optimizers = apply_optimizer_in_backward(run.ddp.core(), early, kind.factory);
      const auto rest = plain_optimizer(kind.factory, late);
      EXPECT_EQ(optimizers->optimizers().size(), early.size());
      for (int step = 0; step < 4; ++step) {
        if (step == 2) {
          for (const auto& one : optimizers->optimizers()) one->param_groups()[0].options().set_lr(0.02);
          rest->param_groups()[0].options().set_lr(0.02);
          plain->param_groups()[0].options().set_lr(0.02);
        }
        expected.backward(rank, step);
        plain->step();
        run.backward(rank, step);
        for (const auto& parameter : early) EXPECT_FALSE(parameter.grad().defined());
        for (const auto& parameter : late) EXPECT_TRUE(parameter.grad().defined());
        rest->step();
        expect_same_bits(run.ddp.parameters(), expected.ddp.parameters(), concat(kind.name, ", step ", step));
      }
      // Local passes accumulate, and count in the next synchronized one.
      {
        const auto guard = run.ddp.no_sync();
        run.ddp(random_tensor({4, kWidth}, 7 + rank)).sum().backward();
      }
      EXPECT_TRUE(early[0].grad().defined());
      EXPECT_NE(error_of([&] { run.ddp.register_comm_hook(make_allreduce_hook()); }).find("optimizer_in_backward"),
                std::string::npos);
    });
  }
}

TEST_P(InBackward, LeavesFrozenParametersAlone) {
  for (const OptimizerKind& kind : optimizer_kinds()) {
    run_ranks(GetParam(), 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      Training expected(GetParam(), group, false, /*searches=*/true);
      const auto plain = plain_optimizer(kind.factory, expected.ddp.parameters());
      Training run(GetParam(), group, false, /*searches=*/true);
      const auto optimizers = apply_optimizer_in_backward(run.ddp.core(), run.ddp.parameters(), kind.factory);
      for (int step = 0; step < 9; ++step) {
        freeze_layer(expected.net, step, 3);
        freeze_layer(run.net, step, 3);
        expected.backward(rank, step);
        plain->step();
        run.backward(rank, step);
        expect_same_bits(run.ddp.parameters(), expected.ddp.parameters(), concat(kind.name, ", step ", step));
      }
    });
  }
}

// A rank that has frozen a layer which another rank uses. Where the layer does not step in the backward pass, the ranks
// stay alike.
TEST_P(InBackward, FindsAParameterThatOneRankHasFrozen) {
  for (const bool steps : {true, false}) {
    run_ranks(GetParam(), 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      Training run(GetParam(), group, false, /*searches=*/true);
      const auto layer = run.net->linears[2]->parameters();
      auto parameters = run.ddp.parameters();
      if (!steps) {
        std::erase_if(parameters,
                      [&](const at::Tensor& one) { return one.is_same(layer[0]) || one.is_same(layer[1]); });
      }
      const auto optimizers = apply_optimizer_in_backward(run.ddp.core(), parameters, optimizer_kinds()[0].factory);
      run.backward(rank, 0);
      for (auto parameter : layer) parameter.set_requires_grad(rank == 0);
      // The other rank hears of it in its next iteration.
      const std::string said = error_of([&] {
        for (const int step : {1, 2}) run.backward(rank, step);
      });
      if (steps) {
        EXPECT_NE(said.find("layer2.bias' needs no gradient on rank 1"), std::string::npos) << said;
      } else {
        EXPECT_EQ(said, "");
        expect_replicas(*group, run.ddp.parameters(), "at the end");
      }
    });
  }
}

// Where all ranks have frozen it, and one of them had used it before, no rank has stepped it.
TEST_P(InBackward, SaysThatAParameterWasFrozenBetweenThePassesOfAnIteration) {
  for (const bool other_froze : {true, false}) {
    std::vector<std::string> said(2);
    run_ranks(GetParam(), 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      Training run(GetParam(), group, false, /*searches=*/true);
      const auto optimizers =
          apply_optimizer_in_backward(run.ddp.core(), run.ddp.parameters(), optimizer_kinds()[0].factory);
      run.backward(rank, 0);
      if (rank == 0) {
        const auto local = run.ddp.no_sync();
        run.ddp(random_tensor({4, kWidth}, 7)).pow(2).mean().backward();
      }
      for (auto& parameter : run.net->linears[2]->parameters()) parameter.set_requires_grad(rank == 1 && !other_froze);
      said[static_cast<std::size_t>(rank)] = error_of([&] {
        for (const int step : {1, 2}) {
          run.ddp(random_tensor({4, kWidth}, 100 * step + rank)).pow(2).mean().backward();
        }
      });
      error_of([&] { group->barrier()->wait(); });  // until then both keep their objects, unless it was aborted
    });
    const std::string cause = "was frozen on rank 0 between the passes of one iteration, after a pass under no_sync()";
    EXPECT_NE(said[0].find(cause), std::string::npos) << said[0];
    if (other_froze && said[1].find(cause) == std::string::npos) {
      EXPECT_NE(said[1].find("or it was frozen there too, after a pass under no_sync()"), std::string::npos) << said[1];
    }
    EXPECT_NE(said[1], "");
  }
}

// The sum of the ranks' gradients is beyond float16's range, their average is not.
TEST_P(InBackward, StepsByAnAverageOfHalvesThatIsFinite) {
  struct Halves : torch::nn::Module {
    Halves() { w = register_parameter("w", at::zeros({5}, at::kHalf)); }
    at::Tensor forward(double factor) { return w * factor; }
    at::Tensor w;
  };
  run_ranks(GetParam(), 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const auto net = std::make_shared<Halves>();
    DistributedDataParallel<Halves> ddp(net, options_for(GetParam(), group));
    const auto optimizers = apply_optimizer_in_backward(
        ddp.core(), ddp.parameters(), optimizer_factory<torch::optim::SGD>(torch::optim::SGDOptions(1)));
    ddp(40000.0 + 2048 * rank).backward(at::ones({5}, at::kHalf));
    EXPECT_TRUE(at::equal(net->w.detach().to(at::kDouble), at::full({5}, -41024.0, at::kDouble))) << net->w;
  });
}

TEST(InBackwardAlone, StepsAsGradientsComeAndStopsWithItsHandle) {
  for (const OptimizerKind& kind : optimizer_kinds()) {
    Mlp expected(4, kWidth);
    const auto plain = plain_optimizer(kind.factory, expected->parameters());
    Mlp net(4, kWidth);
    auto optimizers = apply_optimizer_in_backward(net->parameters(), kind.factory);
    for (int step = 0; step < 4; ++step) {
      const at::Tensor x = random_tensor({4, kWidth}, step);
      plain->zero_grad();
      // A parameter that is used twice gets one gradient, and steps once.
      (expected->forward(x).pow(2).mean() + expected->linears[0]->weight.sum()).backward();
      plain->step();
      (net->forward(x).pow(2).mean() + net->linears[0]->weight.sum()).backward();
      for (const auto& parameter : net->parameters()) EXPECT_FALSE(parameter.grad().defined());
      expect_same_bits(net->parameters(), expected->parameters(), concat(kind.name, ", step ", step));
    }
    EXPECT_NE(error_of([&] {
                (void)apply_optimizer_in_backward(net->parameters(), kind.factory);
              }).find("an optimizer in the backward"),
              std::string::npos);
    optimizers.reset();
    const auto before = net->parameters()[0].detach().clone();
    net->forward(random_tensor({4, kWidth}, 9)).sum().backward();
    EXPECT_TRUE(before.equal(net->parameters()[0]));
    EXPECT_TRUE(net->parameters()[0].grad().defined());
  }
}

TEST(InBackwardErrors, WhatCannotWorkIsRefused) {
  run_ranks({"threads"}, 2, [](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const auto expect_in = [](const std::string& error, const std::string& part) {
      EXPECT_NE(error.find(part), std::string::npos) << error;
    };
    const auto factory = adam_factory();
    const auto refusal = [&](const std::vector<at::Tensor>& parameters, const OptimizerFactory& make) {
      return error_of([&] { (void)apply_optimizer_in_backward(parameters, make); });
    };
    const at::Tensor good = at::ones({3}).requires_grad_();
    expect_in(refusal({}, factory), "no parameters");
    expect_in(refusal({good, good}, factory), "twice");
    expect_in(refusal({at::ones({3})}, factory), "needs no gradient");
    expect_in(refusal({good}, nullptr), "null");
    expect_in(refusal({good}, [](auto) { return nullptr; }), "returned no optimizer");

    Training run({"threads"}, group);
    expect_in(error_of([&] { (void)apply_optimizer_in_backward(run.ddp.core(), {good}, factory); }), "is not one of");
    expect_in(refusal(run.ddp.parameters(), factory), "pass ddp.core()");
    run.ddp.register_comm_hook(make_allreduce_hook());
    expect_in(error_of([&] { (void)apply_optimizer_in_backward(run.ddp.core(), run.ddp.parameters(), factory); }),
              "allreduce");

    auto options = options_for({"threads"}, group);
    options.mixed_precision = MixedPrecision{.param_dtype = at::kBFloat16};
    DistributedDataParallel low(Mlp(2, kWidth), options);
    expect_in(error_of([&] { (void)apply_optimizer_in_backward(low.core(), low.parameters(), factory); }),
              "mixed_precision");
    expect_in(error_of([&] {
                (void)make_zero_hook(make_allreduce_hook(), overlapped(low.parameters(), group, factory), low.core());
              }),
              "mixed_precision");

    // What DDP sums without a hook would lose its gradient and never step.
    options = options_for({"threads"}, group);
    options.delay_all_reduce_named_params = {"layer0.weight"};
    options.param_to_hook_all_reduce = "layer0.bias";
    DistributedDataParallel delayed(Mlp(2, kWidth), options);
    const auto some = apply_optimizer_in_backward(delayed.core(), delayed.parameters(), factory);
    expect_in(error_of([&] {
                delayed(random_tensor({2, kWidth}, rank)).sum().backward();
              }),
              "1 of 4 parameters came in no bucket");

    // A module that is wrapped afterwards would step with the gradients of its own rank.
    const Mlp net(2, kWidth);
    const auto optimizers = apply_optimizer_in_backward(net->parameters(), factory);
    DistributedDataParallel late(net, options_for({"threads"}, group));
    expect_in(error_of([&] { late(random_tensor({2, kWidth}, rank)).sum().backward(); }), "Wrap it first");
  });
}

}  // namespace
}  // namespace gradwire::testing::zero_hook_test

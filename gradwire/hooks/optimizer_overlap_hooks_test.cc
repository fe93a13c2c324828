// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/hooks/optimizer_overlap_hooks.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "gradwire/base/error.h"
#include "gradwire/hooks/compress_wrappers.h"
#include "gradwire/hooks/default_hooks.h"
#include "gradwire/hooks/hook_test_support.h"
#include "gradwire/hooks/quantization_hooks.h"
#include "gradwire/hooks/registry.h"

namespace gradwire::testing::optimizer_overlap_hooks_test {
namespace {

constexpr int kWorld = 2;
constexpr int kWidth = 16;

struct OptimizerCase {
  std::string name;
  std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)> make;
};

std::vector<OptimizerCase> optimizer_cases() {
  using Parameters = std::vector<at::Tensor>;
  return {
      {"sgd", [](Parameters p) { return std::make_unique<torch::optim::SGD>(p, torch::optim::SGDOptions(0.1)); }},
      {"sgd_momentum",
       [](Parameters p) {
         return std::make_unique<torch::optim::SGD>(p, torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(1e-2));
       }},
      {"adam", [](Parameters p) { return std::make_unique<torch::optim::Adam>(p, torch::optim::AdamOptions(1e-2)); }},
      {"adam_amsgrad",
       [](Parameters p) {
         return std::make_unique<torch::optim::Adam>(p, torch::optim::AdamOptions(1e-2).amsgrad(true));
       }},
      {"adamw",
       [](Parameters p) {
         return std::make_unique<torch::optim::AdamW>(p, torch::optim::AdamWOptions(1e-2).weight_decay(0.1));
       }},
      {"adagrad",
       [](Parameters p) { return std::make_unique<torch::optim::Adagrad>(p, torch::optim::AdagradOptions(1e-2)); }},
  };
}

class OptimizerOverlap : public ::testing::TestWithParam<OptimizerCase> {
 protected:
  ParameterOptimizerFactory factory() const {
    return [make = GetParam().make](const std::string&, const at::Tensor& parameter) { return make({parameter}); };
  }
};
INSTANTIATE_TEST_SUITE_P(Optimizer, OptimizerOverlap, ::testing::ValuesIn(optimizer_cases()),
                         [](const auto& info) { return info.param.name; });

struct TrainingRun {
  Mlp net{6, kWidth};
  std::unique_ptr<DistributedDataParallel<Mlp>> ddp;

  TrainingRun(const Setup& setup, const std::shared_ptr<ProcessGroup>& group, const std::shared_ptr<CommHook>& hook,
              bool searches = false) {
    auto options = options_for(setup, group);
    options.bucket_cap_mb = 0.002;
    options.find_unused_parameters = searches;
    ddp = std::make_unique<DistributedDataParallel<Mlp>>(net, options);
    ddp->register_comm_hook(hook);
  }
  void backward(int rank, int step) {
    ddp->zero_grad(step % 2 == 0);
    const at::Tensor batch = random_tensor({8, kWidth}, step).chunk(kWorld)[static_cast<std::size_t>(rank)];
    (*ddp)(batch).pow(2).mean().backward();
  }
  std::vector<at::Tensor> parameters() const {
    std::vector<at::Tensor> out;
    for (const auto& parameter : net->parameters()) out.push_back(parameter.detach().clone());
    return out;
  }
};

void expect_equal(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(same_bits(actual[i], expected[i])) << "tensor " << i;
}

TEST_P(OptimizerOverlap, EqualsTheHookAndThenAStepBitForBit) {
  for (const auto& setup : all_setups()) {
    SCOPED_TRACE(concat(setup.group, ", lanes ", setup.lanes));
    run_ranks(setup, kWorld, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      TrainingRun plain(setup, group, make_quantization_pertensor_hook());
      TrainingRun overlapped(setup, group, make_hook_then_optimizer(make_quantization_pertensor_hook(), factory()));
      const auto optimizer = GetParam().make(plain.net->parameters());
      for (int step = 0; step < 5; ++step) {
        plain.backward(rank, step);
        optimizer->step();
        overlapped.backward(rank, step);
        expect_equal(overlapped.parameters(), plain.parameters());
        expect_equal(gradients_of(*overlapped.net), gradients_of(*plain.net));
      }
    });
  }
}

// Parameters that are frozen for a while: no step moves them.
TEST_P(OptimizerOverlap, LeavesFrozenParametersAlone) {
  for (const auto& setup : all_setups()) {
    SCOPED_TRACE(concat(setup.group, ", lanes ", setup.lanes));
    run_ranks(setup, kWorld, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      TrainingRun plain(setup, group, make_allreduce_hook(), true);
      TrainingRun overlapped(setup, group, make_hook_then_optimizer(make_allreduce_hook(), factory()), true);
      const auto optimizer = GetParam().make(plain.net->parameters());
      for (int step = 0; step < 7; ++step) {
        for (TrainingRun* run : {&plain, &overlapped}) {
          for (auto& parameter : run->net->linears[2]->parameters()) parameter.set_requires_grad(step < 2 || step >= 5);
        }
        plain.backward(rank, 2 * step);  // an even number: .grad becomes undefined
        optimizer->step();
        overlapped.backward(rank, 2 * step);
        expect_equal(overlapped.parameters(), plain.parameters());
      }
    });
  }
}

// A layer that has no optimizer may be frozen on one rank: no rank steps it.
TEST_P(OptimizerOverlap, AParameterThatDoesNotStepMayBeFrozenOnOneRank) {
  const gradwire::testing::Setup setup{"threads", 2};
  run_ranks(setup, kWorld, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const auto some = [make = factory()](const std::string& name, const at::Tensor& parameter) {
      return name.starts_with("layer2.") ? nullptr : make(name, parameter);
    };
    TrainingRun run(setup, group, make_hook_then_optimizer(make_allreduce_hook(), some), true);
    for (auto& parameter : run.net->linears[2]->parameters()) parameter.set_requires_grad(rank != 0);
    for (int step = 0; step < 3; ++step) run.backward(rank, 2 * step);
  });
}

// Saved after three steps, loaded into a new hook (with other buckets), and into one that has stepped already.
TEST_P(OptimizerOverlap, GoesOnFromItsState) {
  const gradwire::testing::Setup setup{"threads", 2};
  run_ranks(setup, kWorld, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const auto hook = make_hook_then_optimizer(make_allreduce_hook(), factory());
    TrainingRun first(setup, group, hook);
    for (int step = 0; step < 3; ++step) first.backward(rank, step);
    const HookState state = hook->state_dict();
    const auto weights = first.parameters();
    for (int step = 3; step < 6; ++step) first.backward(rank, step);

    for (const bool used : {false, true}) {
      const auto resumed_hook = make_hook_then_optimizer(make_allreduce_hook(), factory());
      TrainingRun resumed(setup, group, resumed_hook);
      if (used) resumed.backward(rank, 9);
      {
        const torch::NoGradGuard no_grad;
        for (std::size_t i = 0; i < weights.size(); ++i) resumed.net->parameters()[i].copy_(weights[i]);
      }
      resumed_hook->load_state_dict(state);
      // What was loaded and not used yet is saved again.
      const HookState again = resumed_hook->state_dict();
      ASSERT_EQ(again.size(), state.size());
      for (const auto& [key, value] : state) {
        ASSERT_TRUE(again.contains(key)) << key;
        if (value.isTensor()) {
          EXPECT_TRUE(same_bits(value.toTensor(), again.at(key).toTensor())) << key;
        }
      }
      for (int step = 3; step < 6; ++step) resumed.backward(rank, step);
      expect_equal(resumed.parameters(), first.parameters());
    }
  });
}

// A checkpoint from before the first step, into objects that have trained since.
TEST_P(OptimizerOverlap, BeginsAnewFromAStateOfNoSteps) {
  const gradwire::testing::Setup setup{"threads", 2};
  run_ranks(setup, kWorld, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const auto hook = make_hook_then_optimizer(make_allreduce_hook(), factory());
    TrainingRun run(setup, group, hook);
    const HookState state = hook->state_dict();
    const auto weights = run.parameters();
    for (int step = 0; step < 3; ++step) run.backward(rank, step);
    const auto expected = run.parameters();
    {
      const torch::NoGradGuard no_grad;
      for (std::size_t i = 0; i < weights.size(); ++i) run.net->parameters()[i].copy_(weights[i]);
    }
    hook->load_state_dict(state);
    for (int step = 0; step < 3; ++step) run.backward(rank, step);
    expect_equal(run.parameters(), expected);
  });
}

TEST(OptimizerOverlapState, IsByNameAndRefusesAnotherKind) {
  const gradwire::testing::Setup setup{"threads", 1};
  run_ranks(setup, kWorld, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const auto adam = make_hook_then_optimizer(make_allreduce_hook(), [](const std::string&, const at::Tensor& p) {
      return std::make_unique<torch::optim::Adam>(std::vector<at::Tensor>{p}, torch::optim::AdamOptions(1e-2));
    });
    TrainingRun run(setup, group, adam);
    run.backward(rank, 0);
    const HookState state = adam->state_dict();
    ASSERT_TRUE(state.contains("optimizer/exp_avg/layer0.weight"));
    EXPECT_TRUE(state.at("optimizer/exp_avg/layer0.weight").isTensor());
    EXPECT_THROW(adam->load_state_dict({{"iteration", 3}}), InvalidArgument);  // the inner hook has no memory
    EXPECT_THROW(adam->load_state_dict({{"optimizer/exp_avg", 3}}), InvalidArgument);

    const auto sgd = make_hook_then_optimizer(make_allreduce_hook(), [](const std::string&, const at::Tensor& p) {
      return std::make_unique<torch::optim::SGD>(std::vector<at::Tensor>{p},
                                                 torch::optim::SGDOptions(0.1).momentum(0.9));
    });
    TrainingRun other(setup, group, sgd);
    sgd->load_state_dict(state);
    const std::string error = error_of([&] { other.backward(rank, 0); });
    EXPECT_NE(error.find("this kind of optimizer"), std::string::npos) << error;
  });
}

TEST(OptimizerOverlapParameters, TheFactoryChoosesAndRatesCanBeSet) {
  const gradwire::testing::Setup setup{"threads", 2};
  run_ranks(setup, kWorld, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const auto hook = make_hook_then_optimizer(
        make_allreduce_hook(),
        [](const std::string& name, const at::Tensor& p) -> std::unique_ptr<torch::optim::Optimizer> {
          if (name.find("bias") != std::string::npos) return nullptr;
          return std::make_unique<torch::optim::SGD>(std::vector<at::Tensor>{p}, torch::optim::SGDOptions(0.1));
        });
    TrainingRun run(setup, group, hook);
    const auto before = run.parameters();
    run.backward(rank, 0);
    const auto after = run.parameters();
    for (std::size_t i = 0; i < after.size(); ++i) EXPECT_EQ(after[i].equal(before[i]), i % 2 == 1) << i;
    int visited = 0;
    hook->for_each([&](const std::string&, torch::optim::Optimizer& optimizer) {
      ++visited;
      optimizer.param_groups()[0].options().set_lr(0);
    });
    EXPECT_EQ(visited, 6);
    run.backward(rank, 1);
    expect_equal(run.parameters(), after);
  });
}

TEST(HookThenStep, StepsEachParameterOnceWithItsAverage) {
  for (const auto& setup : all_setups()) {
    run_ranks(setup, kWorld, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      TrainingRun plain(setup, group, make_allreduce_hook());
      torch::optim::SGD optimizer(plain.net->parameters(), 0.25);
      TrainingRun stepped(
          setup, group, make_hook_then_step(make_allreduce_hook(), [](const std::string&, at::Tensor p, at::Tensor g) {
            p.add_(g, -0.25);
          }));
      for (int step = 0; step < 3; ++step) {
        plain.backward(rank, step);
        optimizer.step();
        stepped.backward(rank, step);
      }
      expect_equal(stepped.parameters(), plain.parameters());
    });
  }
}

TEST(HookThenStep, SaysWhereAWrapperBelongs) {
  const auto steps = [](const std::string&, at::Tensor p, at::Tensor g) { p.add_(g, -0.25); };
  run_ranks(all_setups().front(), 1, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    TrainingRun inside(all_setups().front(), group, make_hook_then_step(make_hook("fp16_compress"), steps));
    inside.backward(rank, 0);
    TrainingRun outside(all_setups().front(), group,
                        make_fp16_compress_wrapper(make_hook_then_step(make_allreduce_hook(), steps)));
    const std::string error = error_of([&] { outside.backward(rank, 0); });
    EXPECT_NE(error.find("Put the wrapper inside"), std::string::npos) << error;
  });
}

TEST(HookThenStep, RefusesNull) {
  EXPECT_THROW((void)make_hook_then_step(make_allreduce_hook(), nullptr), InvalidArgument);
  EXPECT_THROW((void)make_hook_then_step(nullptr, [](const std::string&, at::Tensor, at::Tensor) {}), InvalidArgument);
  EXPECT_THROW((void)make_hook_then_optimizer(make_allreduce_hook(), nullptr), InvalidArgument);
  EXPECT_THROW((void)make_hook_then_optimizer(nullptr, [](const std::string&, const at::Tensor&) { return nullptr; }),
               InvalidArgument);
}

}  // namespace
}  // namespace gradwire::testing::optimizer_overlap_hooks_test

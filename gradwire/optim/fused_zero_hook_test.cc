// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Steps fused with the reduction, against DDP's own average followed by the plain optimizer.
#include "gradwire/optim/fused_zero_hook.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/rmsprop.h>

#include "gradwire/base/error.h"
#include "gradwire/ddp/join.h"
#include "gradwire/hooks/default_hooks.h"
#include "gradwire/optim/optim_test_support.h"
#include "gradwire/optim/zero_hook.h"

namespace gradwire::testing::fused_zero_hook_test {
namespace {

// Sizes that are no multiples of a cache line, so that shards and runs cut parameters, and begin in the midst of lines.
struct OddNetImpl : torch::nn::Module {
  OddNetImpl() {
    for (const auto& [in, out] : {std::pair{13, 37}, {37, 41}, {41, 5}})
      linears.push_back(register_module(concat("layer", linears.size()), torch::nn::Linear(in, out)));
    scale = register_parameter("scale", at::ones({}));
    tall = register_parameter("tall", random_tensor({3, 7}, 5).t());  // dense, not contiguous
    fill(*this, 3);
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& linear : linears) x = linear(x).tanh();
    return x * scale + (tall.contiguous() * weights).sum();  // the same bits for any strides
  }
  std::vector<torch::nn::Linear> linears;
  at::Tensor scale;
  at::Tensor tall;
  const at::Tensor weights = at::arange(21.0).view({7, 3}) / 21;
};
TORCH_MODULE(OddNet);

std::vector<OptimizerKind> element_wise_kinds() {
  using namespace torch::optim;
  std::vector<OptimizerKind> kinds = optimizer_kinds();
  kinds.push_back({"sgd", optimizer_factory<SGD>(SGDOptions(0.1))});
  kinds.push_back({"adagrad", optimizer_factory<Adagrad>(AdagradOptions(1e-2))});
  kinds.push_back({"rmsprop", optimizer_factory<RMSprop>(RMSpropOptions(1e-2).momentum(0.9))});
  return kinds;
}

// DDP over an OddNet, with several buckets, and backward passes whose inputs depend on rank and step.
struct Training {
  Training(const Setup& setup, const std::shared_ptr<ProcessGroup>& group, bool fixed = false,
           at::ScalarType dtype = at::kFloat, bool searches = false)
      : ddp(converted(net, dtype), options(setup, group, fixed, searches)), dtype(dtype) {}

  static OddNet converted(OddNet net, at::ScalarType dtype) {
    net->to(dtype);
    return net;
  }
  static DdpOptions options(const Setup& setup, const std::shared_ptr<ProcessGroup>& group, bool fixed, bool searches) {
    DdpOptions options = options_for(setup, group);
    options.bucket_cap_mb = 0.004;
    options.static_graph = fixed;
    options.find_unused_parameters = searches;
    return options;
  }
  at::Tensor loss(int rank, int step) { return ddp(random_tensor({4, 13}, 100 * step + rank).to(dtype)).pow(2).mean(); }
  void backward(int rank, int step) {
    ddp.zero_grad(step % 2 == 0);
    loss(rank, step).backward();
  }
  std::shared_ptr<ZeroRedundancyOptimizer> fuse(const std::shared_ptr<ProcessGroup>& group,
                                                const OptimizerFactory& factory, FusedZeroOptions fused = {}) {
    auto zero = std::make_shared<ZeroRedundancyOptimizer>(
        ddp.parameters(), factory, ZeroOptions{.process_group = group, .overlap_with_ddp = true});
    ddp.register_comm_hook(make_fused_zero_hook(zero, ddp.core(), fused));
    return zero;
  }

  OddNet net;
  DistributedDataParallel<OddNet> ddp;
  at::ScalarType dtype;
};

// DDP without a hook, and the plain optimizer, which skips the first steps.
struct Expected : Training {
  Expected(const Setup& setup, const std::shared_ptr<ProcessGroup>& group, const OptimizerFactory& factory,
           bool fixed = false, at::ScalarType dtype = at::kFloat, bool searches = false)
      : Training(setup, group, fixed, dtype, searches),
        optimizer(plain_optimizer(factory, ddp.parameters())),
        skipped(fixed ? 3 : 2) {}
  void train(int rank, int step) {
    backward(rank, step);
    if (step >= skipped) optimizer->step();
  }
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  int skipped;
};

std::vector<Setup> setups() {
  std::vector<Setup> all = all_setups();
  all.push_back({"shm", -1, true});
  all.push_back({"shm", 2, false});
  return all;
}

class FusedZeroHook : public ::testing::TestWithParam<Setup> {};
INSTANTIATE_TEST_SUITE_P(Setups, FusedZeroHook, ::testing::ValuesIn(setups()), name_of_setup);

TEST_P(FusedZeroHook, GivesTheBitsOfTheAverageAndThePlainOptimizer) {
  for (const int world : {1, 2, 3}) {
    run_ranks(GetParam(), world, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      std::size_t number = 0;
      for (const OptimizerKind& kind : element_wise_kinds()) {
        const bool fixed = ++number % 2 == 0;
        const auto chunk = static_cast<std::int64_t>(number % 3 == 0 ? 1 << 16 : 100 + number);
        Expected expected(GetParam(), group, kind.factory, fixed);
        Training run(GetParam(), group, fixed);
        const auto zero = run.fuse(group, kind.factory, {.chunk_numel = chunk});
        for (int step = 0; step < 8; ++step) {
          if (step == 5) {
            zero->param_groups()[0].options().set_lr(0.003);
            expected.optimizer->param_groups()[0].options().set_lr(0.003);
          }
          // Other memory for one rank's parameters, as torch::load() gives it.
          if (step == 4 && rank == world - 1) {
            for (const at::Tensor& parameter : run.ddp.parameters()) parameter.set_data(parameter.detach().clone());
            // Of other strides than its gradients, too.
            run.net->tall.set_data(run.net->tall.detach().contiguous());
          }
          expected.train(rank, step);
          run.backward(rank, step);
          const std::string where = concat(kind.name, ", world ", world, ", chunks of ", chunk, ", step ", step);
          expect_same_bits(run.ddp.parameters(), expected.ddp.parameters(), where);
          if (step < expected.skipped) expect_same_bits(gradients_of(*run.net), gradients_of(*expected.net), where);
        }
        expect_replicas(*group, run.ddp.parameters(), "at the end");
      }
    });
  }
}

// Parameters that are frozen for a while, before and after the buckets have owners: no step moves them.
TEST_P(FusedZeroHook, LeavesFrozenParametersAlone) {
  for (const OptimizerKind& kind : element_wise_kinds()) {
    for (const int first : {1, 4}) {
      run_ranks(GetParam(), 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
        Expected expected(GetParam(), group, kind.factory, false, at::kFloat, /*searches=*/true);
        Training run(GetParam(), group, false, at::kFloat, /*searches=*/true);
        run.fuse(group, kind.factory, {.chunk_numel = 100});
        for (int step = 0; step < 9; ++step) {
          for (OddNet net : {expected.net, run.net}) {
            net->linears[1]->weight.set_requires_grad(step < first || step >= 7);
            net->tall.set_requires_grad(step < first || step >= 7);
          }
          // Not to zeros: a parameter without a gradient is not stepped by the plain optimizer.
          expected.ddp.zero_grad();
          expected.loss(rank, step).backward();
          if (step >= expected.skipped) expected.optimizer->step();
          run.ddp.zero_grad();
          run.loss(rank, step).backward();
          expect_same_bits(run.ddp.parameters(), expected.ddp.parameters(),
                           concat(kind.name, ", frozen from step ", first, ", step ", step));
        }
      });
    }
  }
}

TEST_P(FusedZeroHook, GivesTheBitsOfThePlainOptimizerInFloat64) {
  run_ranks(GetParam(), 3, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    Expected expected(GetParam(), group, adam_factory(), false, at::kDouble);
    Training run(GetParam(), group, false, at::kDouble);
    run.fuse(group, adam_factory(), {.chunk_numel = 77});
    for (int step = 0; step < 5; ++step) {
      expected.train(rank, step);
      run.backward(rank, step);
      expect_same_bits(run.ddp.parameters(), expected.ddp.parameters(), concat("step ", step));
    }
  });
}

// Each rank keeps the state of its shards alone.
TEST(FusedZeroHookState, IsSharedOutAmongTheRanks) {
  const gradwire::testing::Setup setup{"threads", 1, true};
  for (const int world : {2, 3}) {
    std::vector<std::int64_t> held(static_cast<std::size_t>(world));
    std::int64_t total = 0;
    run_ranks(setup, world, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      Training run(setup, group);
      std::vector<torch::optim::Optimizer*> made;
      const OptimizerFactory adam = adam_factory();
      run.fuse(group, [&](std::vector<torch::optim::OptimizerParamGroup> groups) {
        auto optimizer = adam(std::move(groups));
        made.push_back(optimizer.get());
        return optimizer;
      });
      for (int step = 0; step < 4; ++step) run.backward(rank, step);
      std::int64_t mine = 0;
      for (std::size_t i = 1; i < made.size(); ++i) {  // the first one knows the defaults, and is over nothing
        for (const auto& [key, state] : made[i]->state())
          mine += static_cast<const torch::optim::AdamParamState&>(*state).exp_avg().numel();
      }
      held[static_cast<std::size_t>(rank)] = mine;
      if (rank == 0) {
        for (const at::Tensor& parameter : run.ddp.parameters()) total += parameter.numel();
      }
    });
    std::int64_t sum = 0;
    for (const std::int64_t mine : held) {
      sum += mine;
      EXPECT_LT(mine, total / world + 3 * 64 * world);
    }
    EXPECT_EQ(sum, total);
  }
}

TEST(FusedZeroHookState, GoesToThePlainOptimizerToTheOtherHookAndToAnotherWorld) {
  for (const OptimizerKind& kind : element_wise_kinds()) {
    SCOPED_TRACE(kind.name);
    std::string state;
    std::vector<at::Tensor> weights;
    const gradwire::testing::Setup setup{"threads", 2, true};
    run_ranks(setup, 3, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      Expected expected(setup, group, kind.factory);
      Training run(setup, group);
      const auto zero = run.fuse(group, kind.factory, {.chunk_numel = 90});
      EXPECT_NE(error_of([&] { zero->consolidate_state(); }).find("before the first update"), std::string::npos);
      for (int step = 0; step < 6; ++step) {
        expected.train(rank, step);
        run.backward(rank, step);
      }
      EXPECT_NE(error_of([&] { (void)zero->owner_of(run.ddp.parameters()[0]); }).find("several ranks"),
                std::string::npos);
      zero->consolidate_state(1);
      if (rank != 1) return;
      state = bytes_of(*zero);
      for (const auto& parameter : run.ddp.parameters()) weights.push_back(parameter.detach().clone());
    });
    run_ranks(setup, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      Expected expected(setup, group, kind.factory);
      expected.skipped = 1;  // the order of the buckets was not loaded
      load_bytes(*expected.optimizer, state);
      set_values(expected.ddp.parameters(), weights);
      Training fused(setup, group);
      set_values(fused.ddp.parameters(), weights);
      const auto zero = fused.fuse(group, kind.factory, {.chunk_numel = 111});
      load_bytes(*zero, state);
      Training other(setup, group);
      set_values(other.ddp.parameters(), weights);
      const auto plain_zero = std::make_shared<ZeroRedundancyOptimizer>(
          other.ddp.parameters(), kind.factory, ZeroOptions{.process_group = group, .overlap_with_ddp = true});
      load_bytes(*plain_zero, state);
      other.ddp.register_comm_hook(make_zero_hook(make_allreduce_hook(), plain_zero, other.ddp.core()));
      for (int step = 0; step < 5; ++step) {
        expected.train(rank, step);
        fused.backward(rank, step);
        other.backward(rank, step);
        expect_same_bits(fused.ddp.parameters(), expected.ddp.parameters(), concat("resumed, step ", step));
        expect_same_bits(other.ddp.parameters(), expected.ddp.parameters(), concat("the other hook, step ", step));
      }
      load_bytes(*zero, state);  // and when buckets are known
      load_bytes(*expected.optimizer, state);
      expected.train(rank, 5);
      fused.backward(rank, 5);
      expect_same_bits(fused.ddp.parameters(), expected.ddp.parameters(), "loaded again");
    });
  }
}

// A run that goes on from a saved state, with the order of the buckets, against one that was not interrupted.
TEST_P(FusedZeroHook, ResumedWithTheOrderOfTheBucketsItStepsFromTheFirstIterationOn) {
  for (const bool fixed : {false, true}) {
    run_ranks(GetParam(), 3, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      Training whole(GetParam(), group, fixed);
      const auto zero = whole.fuse(group, adam_factory(), {.chunk_numel = 111});
      for (int step = 0; step < 5; ++step) whole.backward(rank, step);
      Training resumed(GetParam(), group, fixed);
      set_values(resumed.ddp.parameters(), whole.ddp.parameters());
      hand_over(*zero, *resumed.fuse(group, adam_factory(), {.chunk_numel = 111}));
      resumed.ddp.core().set_bucket_order(whole.ddp.core().bucket_order());
      for (int step = 5; step < 8; ++step) {
        whole.backward(rank, step);
        resumed.backward(rank, step);
        expect_same_bits(resumed.ddp.parameters(), whole.ddp.parameters(),
                         concat(fixed ? "static, step " : "step ", step));
      }
    });
  }
}

// A rank without inputs goes on stepping its shards, with the averages of the others.
TEST(FusedZeroHookJoin, ARankWithoutInputsStepsItsShards) {
  const gradwire::testing::Setup setup{"threads", 1, true};
  run_ranks(setup, 3, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    Training run(setup, group);
    run.fuse(group, adam_factory());
    std::vector<at::Tensor> when_joined;
    {
      Join join({run.ddp});
      for (int step = 0; step < 5 + rank; ++step) run.backward(rank, step);
      for (const auto& parameter : run.ddp.parameters()) when_joined.push_back(parameter.detach().clone());
    }
    expect_replicas(*group, run.ddp.parameters(), "after the join");
    if (rank == 0) {
      EXPECT_FALSE(same_bits(when_joined[0], run.ddp.parameters()[0].detach())) << "the last steps did nothing";
    }
  });
}

TEST(FusedZeroHookErrors, WhatCannotWorkIsRefused) {
  const gradwire::testing::Setup setup{"threads", 1, false};
  run_ranks(setup, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const auto expect_in = [](const std::string& error, const std::string& part) {
      EXPECT_NE(error.find(part), std::string::npos) << error;
    };
    struct Own final : torch::optim::SGD {
      using SGD::SGD;
    };
    struct Whole final : torch::optim::Optimizer {
      Whole(std::vector<torch::optim::OptimizerParamGroup> groups, double lr)
          : Optimizer(std::move(groups), std::make_unique<torch::optim::SGDOptions>(lr)) {}
      at::Tensor step(LossClosure) override { return {}; }
      void save(torch::serialize::OutputArchive&) const override {}
      void load(torch::serialize::InputArchive&) override {}
    };
    Training run(setup, group);
    const auto overlapped = [&](const OptimizerFactory& factory) {
      return std::make_shared<ZeroRedundancyOptimizer>(run.ddp.parameters(), factory,
                                                       ZeroOptions{.process_group = group, .overlap_with_ddp = true});
    };
    expect_in(error_of([&] { (void)make_fused_zero_hook(nullptr, run.ddp.core()); }), "null");
    const auto plain = std::make_shared<ZeroRedundancyOptimizer>(run.ddp.parameters(), adam_factory(),
                                                                 ZeroOptions{.process_group = group});
    expect_in(error_of([&] { (void)make_fused_zero_hook(plain, run.ddp.core()); }), "overlap_with_ddp");
    const auto zero = overlapped(adam_factory());
    expect_in(error_of([&] { (void)make_fused_zero_hook(zero, run.ddp.core(), {.chunk_numel = 0}); }), "chunk_numel");
    const auto whole = overlapped([](auto groups) { return std::make_unique<Whole>(std::move(groups), 0.1); });
    expect_in(error_of([&] { (void)make_fused_zero_hook(whole, run.ddp.core()); }), "each element by itself");
    (void)make_fused_zero_hook(whole, run.ddp.core(), {.element_wise = true});
    (void)make_fused_zero_hook(overlapped([](auto groups) { return std::make_unique<Own>(std::move(groups), 0.1); }),
                               run.ddp.core());
    (void)make_fused_zero_hook(zero, run.ddp.core());
    expect_in(error_of([&] { (void)make_fused_zero_hook(zero, run.ddp.core()); }), "has a hook already");

    auto some = run.ddp.parameters();
    some.pop_back();
    const auto part = std::make_shared<ZeroRedundancyOptimizer>(
        some, adam_factory(), ZeroOptions{.process_group = group, .overlap_with_ddp = true});
    run.ddp.register_comm_hook(make_fused_zero_hook(part, run.ddp.core()));
    run.backward(rank, 0);
    expect_in(error_of([&] { run.backward(rank, 1); }), "8 parameters in its buckets and the optimizer 7");
  });
}

// The step of one rank fails: the others hear why.
TEST(FusedZeroHookErrors, AStepThatThrowsReachesAllRanks) {
  const gradwire::testing::Setup setup{"threads", 1, true};
  run_ranks(setup, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    struct Failing final : torch::optim::SGD {
      Failing(std::vector<torch::optim::OptimizerParamGroup> groups, bool fails)
          : SGD(std::move(groups), torch::optim::SGDOptions(0.1)), fails_(fails) {}
      at::Tensor step(LossClosure closure) override {
        if (fails_) throw std::runtime_error("no more digits");
        return SGD::step(std::move(closure));
      }
      bool fails_;
    };
    Training run(setup, group);
    run.fuse(group, [rank](auto groups) { return std::make_unique<Failing>(std::move(groups), rank == 1); });
    run.backward(rank, 0);
    run.backward(rank, 1);
    const std::string error = error_of([&] { run.backward(rank, 2); });
    EXPECT_NE(error.find("no more digits"), std::string::npos) << error;
  });
}

// One rank finds out that its optimizer has other tensors, while the others already share out memory.
TEST(FusedZeroHookErrors, AnOptimizerOfOtherTensorsOnOneRankReachesAllRanksAtOnce) {
  const gradwire::testing::Setup setup{"threads", 1, true};
  const auto start = std::chrono::steady_clock::now();
  run_ranks(setup, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    torch::nn::Linear net(8, 8);
    DistributedDataParallel ddp(net, options_for(setup, group));
    std::vector<at::Tensor> parameters = ddp.parameters();
    if (rank == 1) parameters[1] = parameters[1].detach().clone().requires_grad_();
    const auto zero = std::make_shared<ZeroRedundancyOptimizer>(
        parameters, optimizer_factory<torch::optim::SGD>(torch::optim::SGDOptions(0.1)),
        ZeroOptions{.process_group = group, .overlap_with_ddp = true});
    ddp.register_comm_hook(make_fused_zero_hook(zero, ddp.core()));
    std::string error;
    for (int step = 0; step < 4 && error.empty(); ++step) {
      ddp.zero_grad();
      error = error_of([&] { ddp(random_tensor({2, 8}, rank)).sum().backward(); });
    }
    EXPECT_NE(error.find("DistributedDataParallel has 2 parameters"), std::string::npos) << rank << ": " << error;
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30)) << "half of the group's timeout";
}

}  // namespace
}  // namespace gradwire::testing::fused_zero_hook_test

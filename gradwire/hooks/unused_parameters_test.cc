// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Hooks that remember, in iterations in which no rank uses a parameter: what a hook delivers of the parameter then is
// not applied, so the hook must still owe it.
#include <torch/optim/sgd.h>

#include <string>
#include <vector>

#include "gradwire/ddp/join.h"
#include "gradwire/hooks/compress_wrappers.h"
#include "gradwire/hooks/hook_test_support.h"
#include "gradwire/hooks/optimizer_overlap_hooks.h"
#include "gradwire/hooks/registry.h"
#include "tests/support/on_hosts.h"

namespace gradwire::testing::unused_parameters_test {
namespace {

constexpr std::int64_t kSide = 16;

// The gradient of each parameter is what factor() says. The parameter w is used in even steps alone.
struct SometimesImpl : torch::nn::Module {
  SometimesImpl() {
    w = register_parameter("w", random_tensor({kSide, kSide}, 1));
    v = register_parameter("v", random_tensor({kSide, kSide}, 2));
  }
  static at::Tensor factor(int rank, int step) { return random_tensor({kSide, kSide}, 1000 * rank + step); }
  at::Tensor forward(int rank, int step) {
    const at::Tensor loss = (v * factor(rank, step + 500)).sum();
    return step % 2 == 0 ? loss + (w * factor(rank, step)).sum() : loss;
  }
  at::Tensor w, v;
};
TORCH_MODULE(Sometimes);

DdpOptions searching(const Setup& setup, const std::shared_ptr<ProcessGroup>& group) {
  DdpOptions options = options_for(setup, group);
  options.find_unused_parameters = true;
  return options;
}

// What this rank's hook still owes of `parameter`: zeros where it has kept nothing yet.
at::Tensor owed(const CommHook& hook, const std::string& parameter) {
  const HookState state = hook.state_dict();
  for (const char* const prefix : {"local/residual/", "local/velocity/", "local/error/"}) {
    const auto found = state.find(prefix + parameter);
    if (found != state.end()) return found->second.toTensor().to(at::kDouble).reshape({kSide, kSide});
  }
  return at::zeros({kSide, kSide}, at::kDouble);
}

// What the hook keeps of `parameter`.
HookState memory_of(const CommHook& hook, const std::string& parameter) {
  HookState memory;
  for (const auto& [key, value] : hook.state_dict()) {
    if (key.ends_with("/" + parameter)) memory.emplace(key, value);
  }
  return memory;
}

void expect_same_memory(const HookState& now, const HookState& before, const std::string& what) {
  ASSERT_EQ(now.size(), before.size()) << what;
  for (const auto& [key, value] : before)
    EXPECT_TRUE(now.contains(key) && now.at(key).toTensor().equal(value.toTensor())) << what << ": " << key;
}

at::Tensor mean_over_ranks(ProcessGroup& group, const at::Tensor& own) {
  at::Tensor sum = own.clone();
  group.all_reduce({sum})->wait();
  return sum / group.size();
}

class UnusedParameters : public ::testing::TestWithParam<Setup> {};
INSTANTIATE_TEST_SUITE_P(All, UnusedParameters,
                         ::testing::Values(Setup{"threads", 0, false}, Setup{"threads", 1, true},
                                           Setup{"threads", 2, false}),
                         name_of_setup);

// The applied gradients, and the mean of what ranks still owe, add up to the means of the true gradients.
void expect_nothing_lost(const Setup& setup, int world, const MakeHook& make, const std::string& what,
                         double tolerance = 1e-5) {
  run_ranks(setup, world, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    Sometimes net;
    DistributedDataParallel ddp(net, searching(setup, group));
    const auto hook = make(group);
    ddp.register_comm_hook(hook);
    at::Tensor applied = at::zeros({kSide, kSide}, at::kDouble), wanted = at::zeros_like(applied);
    for (int step = 0; step < 10; ++step) {
      ddp.zero_grad();
      ddp(rank, step).backward();
      EXPECT_EQ(net->w.grad().defined(), step % 2 == 0) << what;
      if (step % 2 != 0) continue;
      applied += net->w.grad().to(at::kDouble);
      wanted += mean_over_ranks(*group, SometimesImpl::factor(rank, step).to(at::kDouble));
    }
    const at::Tensor all = applied + mean_over_ranks(*group, owed(*hook, "w"));
    EXPECT_TRUE(at::allclose(all, wanted, 0, tolerance))
        << what << ", " << world << " ranks, is off by " << (all - wanted).abs().max().item<double>();
  });
}

const std::vector<std::string>& specs() {
  static const std::vector<std::string> all{
      "int4:memory=error_feedback",      "top_k:ratio=0.5", "one_bit", "dgc:momentum=0", "power_sgd:start=2",
      "int4:memory=error_feedback,min=8"};
  return all;
}

TEST_P(UnusedParameters, NothingThatAHookOwesIsLost) {
  for (const std::string& spec : specs()) {
    for (const int world : {1, 2, 3})
      expect_nothing_lost(
          GetParam(), world, [&](const auto&) { return make_hook(spec); }, spec);
  }
}

TEST_P(UnusedParameters, WrappersPassTheUnusedParametersOn) {
  // The wrapper rounds gradients, and keeps nothing of that.
  expect_nothing_lost(
      GetParam(), 2, [](const auto&) { return make_bf16_compress_wrapper(make_hook("top_k:ratio=0.5")); }, "bf16",
      0.02);
  // An optimizer steps v alone: DDP gets the averages of w.
  expect_nothing_lost(
      GetParam(), 2,
      [](const auto&) {
        return make_hook_then_optimizer(
            make_hook("top_k:ratio=0.5"),
            [](const std::string& name, const at::Tensor& parameter) -> std::unique_ptr<torch::optim::Optimizer> {
              if (name != "v") return nullptr;
              return std::make_unique<torch::optim::SGD>(std::vector{parameter}, torch::optim::SGDOptions(0.1));
            });
      },
      "hook_then_optimizer");
}

// No bit of the memory changes, whatever .grad holds. The iterations before the compression have no memory.
TEST_P(UnusedParameters, AnIterationThatUsesAParameterNowhereLeavesItsMemoryAlone) {
  for (const std::string spec : {"int4", "top_k:ratio=0.5", "dgc", "power_sgd:start=2", "int8:memory=ef21",
                                 "top_k:ratio=0.25,memory=ef21", "batched_power_sgd:start=2"}) {
    for (const int zeroing : {0, 1, 2}) {
      const std::string what = concat(spec, ", zeroing ", zeroing);
      run_ranks(GetParam(), 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
        Sometimes net;
        DistributedDataParallel ddp(net, searching(GetParam(), group));
        const auto hook = make_hook(spec);
        ddp.register_comm_hook(hook);
        HookState before;
        for (int step = 0; step < 8; ++step) {
          if (zeroing < 2) ddp.zero_grad(/*set_to_none=*/zeroing == 0);
          ddp(rank, step).backward();
          const HookState now = memory_of(*hook, "w");
          if (step % 2 != 0) expect_same_memory(now, before, concat(what, ", step ", step));
          before = now;
        }
        EXPECT_FALSE(before.empty()) << what;
      });
    }
  }
}

// The memory lies with the first rank of each host.
TEST(UnusedParametersOnHosts, NothingThatAHookOwesIsLost) {
  for (const std::string& spec : specs()) {
    run_ranks({"threads"}, 4, [&](int rank, const std::shared_ptr<ProcessGroup>& flat) {
      const auto group = test_support::on_hosts(flat, "0011");
      Sometimes net;
      DdpOptions options;
      options.process_group = group;
      options.find_unused_parameters = true;
      DistributedDataParallel ddp(net, options);
      const auto hook = make_hook(spec);
      ddp.register_comm_hook(hook);
      at::Tensor applied = at::zeros({kSide, kSide}, at::kDouble), wanted = at::zeros_like(applied);
      for (int step = 0; step < 10; ++step) {
        ddp.zero_grad();
        ddp(rank, step).backward();
        if (step % 2 != 0) continue;
        applied += net->w.grad().to(at::kDouble);
        wanted += mean_over_ranks(*flat, SometimesImpl::factor(rank, step).to(at::kDouble));
      }
      const at::Tensor all = applied + 2 * mean_over_ranks(*flat, owed(*hook, "w"));  // two of four ranks hold it
      EXPECT_TRUE(at::allclose(all, wanted, 0, 1e-5))
          << spec << " is off by " << (all - wanted).abs().max().item<double>();
    });
  }
}

// A rank without inputs takes part with zeros, and with what it owes.
TEST(UnusedParametersInAJoin, NothingThatAHookOwesIsLost) {
  for (const std::string& spec : specs()) {
    run_ranks({"threads"}, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      Sometimes net;
      DistributedDataParallel ddp(net, searching({"threads"}, group));
      const auto hook = make_hook(spec);
      ddp.register_comm_hook(hook);
      at::Tensor applied = at::zeros({kSide, kSide}, at::kDouble), wanted = at::zeros_like(applied);
      {
        const Join join({ddp}, {.divide_by_initial_world_size = true});
        for (int step = 0; step < (rank == 0 ? 10 : 4); ++step) {
          ddp.zero_grad();
          ddp(rank, step).backward();
          if (step % 2 == 0) applied += net->w.grad().to(at::kDouble);
        }
      }
      for (int step = 0; step < 10; step += 2) {
        wanted += SometimesImpl::factor(0, step).to(at::kDouble) / 2;
        if (step < 4) wanted += SometimesImpl::factor(1, step).to(at::kDouble) / 2;
      }
      const at::Tensor all = applied + mean_over_ranks(*group, owed(*hook, "w"));
      if (rank != 0) return;
      EXPECT_TRUE(at::allclose(all, wanted, 0, 1e-5))
          << spec << " is off by " << (all - wanted).abs().max().item<double>();
    });
  }
}

// A hook that steps parameters applies what was delivered, also where no rank used the parameter.
TEST(UnusedParametersOfSteps, AStepThatTookADeliveredPartCounts) {
  const gradwire::testing::Setup setup{"threads", 1, false};
  run_ranks(setup, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    Sometimes net;
    const at::Tensor start = net->w.detach().clone();
    DistributedDataParallel ddp(net, searching(setup, group));
    const auto hook =
        make_hook_then_optimizer(make_hook("top_k:ratio=0.5"), [](const std::string&, const at::Tensor& p) {
          return std::make_unique<torch::optim::SGD>(std::vector{p}, torch::optim::SGDOptions(1.0));
        });
    ddp.register_comm_hook(hook);
    at::Tensor wanted = at::zeros({kSide, kSide}, at::kDouble);
    for (int step = 0; step < 10; ++step) {
      ddp.zero_grad();
      ddp(rank, step).backward();
      if (step % 2 == 0) wanted += mean_over_ranks(*group, SometimesImpl::factor(rank, step).to(at::kDouble));
    }
    const at::Tensor all = (start - net->w.detach()).to(at::kDouble) + mean_over_ranks(*group, owed(*hook, "w"));
    EXPECT_TRUE(at::allclose(all, wanted, 0, 1e-5)) << (all - wanted).abs().max().item<double>();
  });
}

}  // namespace
}  // namespace gradwire::testing::unused_parameters_test

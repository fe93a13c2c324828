// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Another hook between two iterations of training.
#include <mutex>

#include "gradwire/base/error.h"
#include "gradwire/ddp/ddp_test_support.h"
#include "gradwire/hooks/default_hooks.h"
#include "gradwire/hooks/registry.h"

namespace gradwire::testing::replace_hook_test {
namespace {

constexpr int kWorld = 2;
constexpr int kLayers = 6;
constexpr int kWidth = 8;
constexpr double kTinyCap = 16.0 / (1 << 20);  // twelve buckets, one a parameter

class ReplaceHook : public ::testing::TestWithParam<Setup> {};
INSTANTIATE_TEST_SUITE_P(All, ReplaceHook, ::testing::ValuesIn(all_setups()), name_of_setup);

at::Tensor input(int rank, int step) { return random_tensor({4, kWidth}, 50 * step + rank); }

DdpOptions twelve_buckets(const Setup& setup, std::shared_ptr<ProcessGroup> group) {
  DdpOptions options = options_for(setup, std::move(group));
  options.bucket_cap_mb = kTinyCap;
  return options;
}

// The mean of all ranks' gradients at `net`'s parameters, computed alone.
std::vector<at::Tensor> exact_mean(const Mlp& net, int step) {
  Mlp copy(kLayers, kWidth);
  {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < copy->parameters().size(); ++i) copy->parameters()[i].copy_(net->parameters()[i]);
  }
  at::Tensor loss = at::zeros({});
  for (int rank = 0; rank < kWorld; ++rank) loss = loss + copy->forward(input(rank, step)).pow(2).mean() / kWorld;
  loss.backward();
  return gradients_of(*copy);
}

double distance(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, (a[i] - b[i]).abs().max().item<double>());
  return largest;
}

// Plain, then PowerSGD, then plain, then PowerSGD with the memory it had: plain steps give exact means, compressed ones
// do not, and the ranks end with the same bits, as do two runs.
TEST_P(ReplaceHook, PlainPowerSgdPlainPowerSgd) {
  constexpr int kPhase = 6;
  std::vector<std::vector<std::vector<at::Tensor>>> runs;
  for (int run = 0; run < 2; ++run) {
    std::vector<std::vector<at::Tensor>> parameters(kWorld);
    run_ranks(GetParam(), kWorld, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      Mlp net(kLayers, kWidth);
      DistributedDataParallel ddp(net, twelve_buckets(GetParam(), group));
      const auto power = make_hook("power_sgd:rank=1,start=2,min_rate=1");
      for (int step = 0; step < 4 * kPhase; ++step) {
        if (step % kPhase == 0 && step > 0) ddp.replace_comm_hook(step / kPhase % 2 == 1 ? power : nullptr);
        const auto exact = exact_mean(net, step);
        ddp.zero_grad();
        ddp(input(rank, step)).pow(2).mean().backward();
        const bool compressed = step / kPhase == 3 || (step / kPhase == 1 && step % kPhase >= 2);
        const double error = distance(gradients_of(*net), exact);
        if (compressed) {
          EXPECT_GT(error, 1e-5) << "step " << step;
        } else {
          EXPECT_LT(error, 1e-6) << "step " << step;
        }
        const torch::NoGradGuard no_grad;
        for (auto& parameter : net->parameters()) parameter.sub_(parameter.grad(), 0.1);
      }
      EXPECT_EQ(ddp.core().bucket_plan().size(), 12u);
      EXPECT_EQ(power->state_dict().at("iterations").toInt(), 2 * kPhase);
      for (const auto& parameter : net->parameters())
        parameters[static_cast<std::size_t>(rank)].push_back(parameter.detach().clone());
    });
    EXPECT_EQ(distance(parameters[0], parameters[1]), 0);
    runs.push_back(std::move(parameters));
  }
  EXPECT_EQ(distance(runs[0][0], runs[1][0]), 0);
}

// From the next forward on: a backward pass whose forward came before runs the old hook.
TEST_P(ReplaceHook, TakesEffectAtTheNextForward) {
  run_ranks(GetParam(), kWorld, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    Mlp net(2, kWidth);
    DistributedDataParallel ddp(net, options_for(GetParam(), group));
    int first = 0;
    int second = 0;
    const auto counting = [](int& calls) {
      return make_comm_hook([&calls](GradBucket& bucket) {
        ++calls;
        return allreduce_hook(nullptr, bucket);
      });
    };
    ddp.register_comm_hook(counting(first));
    EXPECT_NE(error_of([&] { ddp.register_comm_hook(counting(second)); }).find("replace_comm_hook()"),
              std::string::npos);
    const at::Tensor output = ddp(input(rank, 0));
    ddp.replace_comm_hook(counting(second));
    output.sum().backward();
    EXPECT_EQ(first, 1);
    EXPECT_EQ(second, 0);
    ddp.zero_grad();
    {
      const auto local = ddp.no_sync();
      ddp(input(rank, 1)).sum().backward();
    }
    ddp(input(rank, 2)).sum().backward();
    EXPECT_EQ(first, 1);
    EXPECT_EQ(second, 1);
  });
}

TEST_P(ReplaceHook, IsRefusedWithinABackwardPass) {
  run_ranks(GetParam(), kWorld, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    Mlp net(kLayers, kWidth);
    DistributedDataParallel ddp(net, twelve_buckets(GetParam(), group));
    std::mutex mutex;
    std::vector<std::string> errors;
    const auto attempt = [&] {
      const std::string error = error_of([&] { ddp.replace_comm_hook(make_allreduce_hook()); });
      const std::lock_guard lock(mutex);
      errors.push_back(error);
    };
    ddp.register_comm_hook([&](GradBucket& bucket) {
      attempt();
      return allreduce_hook(nullptr, bucket);
    });
    for (int step = 0; step < 2; ++step) ddp(input(rank, step)).pow(2).mean().backward();
    EXPECT_EQ(errors.size(), 13u);  // one bucket, then twelve
    for (const std::string& error : errors) EXPECT_NE(error.find("within a backward pass"), std::string::npos) << error;
    ddp.replace_comm_hook(nullptr);
    ddp(input(rank, 2)).pow(2).mean().backward();
    EXPECT_EQ(errors.size(), 13u);
    auto broken = make_comm_hook([](GradBucket& bucket) { return bucket.buffer(); }, {.groups = {nullptr}});
    EXPECT_THROW(ddp.replace_comm_hook(broken), InvalidArgument);
  });
}

// A hook that names a group of its own, put in twice: the group's duplicates are made once.
TEST_P(ReplaceHook, AHookMayBringAGroup) {
  run_ranks(GetParam(), kWorld, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const std::shared_ptr<ProcessGroup> own = GetParam().group == "local" ? group : group->dup();
    Mlp net(kLayers, kWidth);
    DistributedDataParallel ddp(net, twelve_buckets(GetParam(), group));
    for (int step = 0; step < 8; ++step) {
      if (step % 2 == 1) ddp.replace_comm_hook(step % 4 == 1 ? make_allreduce_hook(own) : nullptr);
      const auto exact = exact_mean(net, step);
      ddp.zero_grad();
      ddp(input(rank, step)).pow(2).mean().backward();
      EXPECT_LT(distance(gradients_of(*net), exact), 1e-6) << "step " << step;
    }
  });
}

// A rank that goes on with the old hook fails with a MismatchError, as do the others, even where the new hook does what
// the old one did; the message says how many hooks were replaced.
TEST(ReplaceHookMismatch, ARankThatDoesNotIsFoundOut) {
  for (const int lanes : {0, 1, 3}) {
    const gradwire::testing::Setup setup{"threads", lanes, false};
    std::vector<std::string> errors(kWorld);
    run_ranks(setup, kWorld, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      Mlp net(kLayers, kWidth);
      DistributedDataParallel ddp(net, twelve_buckets(setup, group));
      ddp.register_comm_hook(make_allreduce_hook());
      for (int step = 0; step < 3; ++step) ddp(input(rank, step)).pow(2).mean().backward();
      if (rank == 1) ddp.replace_comm_hook(make_allreduce_hook());
      try {
        ddp(input(rank, 3)).pow(2).mean().backward();
      } catch (const MismatchError& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
      } catch (const PeerError& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
      }
    });
    for (const std::string& error : errors) {
      EXPECT_NE(error.find("disagree"), std::string::npos) << error;
      EXPECT_NE(error.find("after 1 replaced hooks"), std::string::npos) << error;
    }
  }
}

// One rank alone, which needs no buckets without a hook.
TEST(ReplaceHookAlone, FromNothingToAHookAndBack) {
  const gradwire::testing::Setup setup{"threads", 1, false};
  run_ranks(setup, 1, [&](int, const std::shared_ptr<ProcessGroup>& group) {
    Mlp net(kLayers, kWidth);
    DistributedDataParallel ddp(net, twelve_buckets(setup, group));
    int calls = 0;
    const auto hook = make_comm_hook([&calls](GradBucket& bucket) {
      ++calls;
      return bucket.buffer().mul_(2);
    });
    for (int step = 0; step < 6; ++step) {
      if (step % 2 == 0 && step > 0) ddp.replace_comm_hook(step == 2 ? hook : nullptr);
      ddp.zero_grad();
      net->forward(input(0, step)).pow(2).mean().backward();
      const auto once = gradients_of(*net);
      ddp.zero_grad();
      ddp(input(0, step)).pow(2).mean().backward();
      const auto got = gradients_of(*net);
      const double factor = step == 2 || step == 3 ? 2 : 1;
      for (std::size_t i = 0; i < once.size(); ++i) EXPECT_TRUE(got[i].equal(once[i] * factor)) << step;
    }
    EXPECT_EQ(calls, 24);
  });
}

}  // namespace
}  // namespace gradwire::testing::replace_hook_test

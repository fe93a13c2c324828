// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// PowerSGD under DDP: several buckets, lanes, a user's group, rebuilt buckets, training.
#include "gradwire/hooks/power_sgd.h"

#include <torch/optim/sgd.h>
#include "gradwire/hooks/power_sgd_test_support.h"

namespace gradwire::testing::power_sgd_ddp_test {
namespace {

constexpr int kLayers = 6;
constexpr int kWidth = 24;

PowerSGDOptions options_of(std::int64_t rank) {
  PowerSGDOptions options;
  options.matrix_approximation_rank = rank;
  options.start_iteration = 2;
  options.min_compression_rate = 1;
  return options;
}

class PowerSgdDdp : public ::testing::TestWithParam<Setup> {};
INSTANTIATE_TEST_SUITE_P(All, PowerSgdDdp, ::testing::ValuesIn(all_setups()), name_of_setup);

at::Tensor batch(int rank, int step, int size = 4) { return random_tensor({size, kWidth}, 100 * step + rank); }

using Make = std::function<std::shared_ptr<CommHook>(std::shared_ptr<ProcessGroup>)>;
using Steps = std::vector<std::vector<at::Tensor>>;  // [step][parameter]

// The gradients of `steps` steps with constant parameters; checks that all ranks hold the same bits.
Steps gradients_of_steps(const Setup& setup, int world, int first, int last, const Make& make, double cap = 0.0005,
                         int batch_size = 4) {
  std::vector<Steps> of_ranks(static_cast<std::size_t>(world));
  run_ranks(setup, world, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    Mlp net(kLayers, kWidth);
    auto options = options_for(setup, group);
    options.bucket_cap_mb = cap;
    DistributedDataParallel ddp(net, options);
    if (const auto hook = make(group)) ddp.register_comm_hook(hook);
    for (int step = first; step < last; ++step) {
      ddp.zero_grad();
      ddp(batch(rank, step, batch_size)).pow(2).sum().backward();
      of_ranks[static_cast<std::size_t>(rank)].push_back(gradients_of(*net));
    }
  });
  for (const Steps& steps : of_ranks) {
    for (std::size_t step = 0; step < steps.size(); ++step) {
      for (std::size_t i = 0; i < steps[step].size(); ++i)
        EXPECT_TRUE(steps[step][i].equal(of_ranks[0][step][i])) << "step " << step << ", parameter " << i;
    }
  }
  return of_ranks[0];
}

void expect_same_bits(const Steps& a, const Steps& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t step = 0; step < a.size(); ++step) {
    for (std::size_t i = 0; i < a[step].size(); ++i)
      EXPECT_TRUE(a[step][i].equal(b[step][i])) << "step " << step << ", parameter " << i;
  }
}

// Gradients of a batch of one have rank 1 on each rank.
TEST_P(PowerSgdDdp, IsExactWhenTheRankSuffices) {
  for (const int world : {2, 3}) {
    const auto plain = gradients_of_steps(
        GetParam(), world, 0, 8, [](auto) { return nullptr; }, 0.0005, 1);
    const auto compressed = gradients_of_steps(
        GetParam(), world, 0, 8, [](auto) { return make_power_sgd_hook(options_of(4)); }, 0.0005, 1);
    for (std::size_t step = 0; step < plain.size(); ++step) expect_close(compressed[step], plain[step], 2e-5);
  }
}

TEST_P(PowerSgdDdp, WorksOverAGroupOfItsOwn) {
  const auto captured =
      gradients_of_steps(GetParam(), 2, 0, 6, [](auto group) { return make_power_sgd_hook(options_of(2), group); });
  const auto handed = gradients_of_steps(GetParam(), 2, 0, 6, [](auto) { return make_power_sgd_hook(options_of(2)); });
  expect_same_bits(captured, handed);
}

struct Form {
  const char* name;
  bool batched;
  bool warm;
};

class PowerSgdBits : public ::testing::TestWithParam<Form> {};
INSTANTIATE_TEST_SUITE_P(All, PowerSgdBits,
                         ::testing::Values(Form{"warm", false, true}, Form{"cold", false, false},
                                           Form{"batched_warm", true, true}, Form{"batched_cold", true, false}),
                         [](const auto& instance) { return std::string(instance.param.name); });

// Twelve buckets. PyTorch's meet in different orders on different ranks, and with warm_start = false forget each
// other's P and Q.
TEST_P(PowerSgdBits, DoNotDependOnLanesOrOnTheRun) {
  const Make make = [&](auto) {
    auto options = options_of(2);
    options.warm_start = GetParam().warm;
    return GetParam().batched ? make_batched_power_sgd_hook(options) : make_power_sgd_hook(options);
  };
  constexpr double kTinyCap = 16.0 / (1 << 20);
  for (const int world : {2, 3, 4}) {
    const auto first = gradients_of_steps({"threads", 1, false}, world, 0, 12, make, kTinyCap);
    for (const int lanes : {0, 1, 2, 3}) {
      expect_same_bits(gradients_of_steps({"threads", lanes, lanes == 2}, world, 0, 12, make, kTinyCap), first);
    }
  }
}

// State goes by parameter: other buckets, in the middle of training, change nothing.
TEST(PowerSgdDdpState, OtherBucketsAndARestartKeepIt) {
  constexpr int kWorld = 2;
  std::vector<std::shared_ptr<PowerSGDState>> states(kWorld);
  const auto with_states = [&](auto group) {
    return make_power_sgd_hook(states[static_cast<std::size_t>(group->rank())]);
  };
  const auto fresh = [&] {
    for (auto& state : states) state = std::make_shared<PowerSGDState>(options_of(2));
  };
  fresh();
  const auto straight = gradients_of_steps({"threads", 2, false}, kWorld, 0, 12, with_states, 100);
  fresh();
  auto resumed = gradients_of_steps({"threads", 2, false}, kWorld, 0, 6, with_states, 100);
  std::vector<HookState> saved;
  for (const auto& state : states) saved.push_back(state->state_dict());
  fresh();
  for (std::size_t rank = 0; rank < kWorld; ++rank) states[rank]->load_state_dict(saved[rank]);
  // A new DDP begins with one bucket and goes on with many.
  const auto rest = gradients_of_steps({"threads", 2, false}, kWorld, 6, 12, with_states, 0.0005);
  resumed.insert(resumed.end(), rest.begin(), rest.end());
  expect_same_bits(resumed, straight);
  EXPECT_EQ(states[0]->iterations(), 12);
}

// In iteration 0 there is one bucket, then several: with compression from the start the rebuild is in the middle.
TEST(PowerSgdDdpState, SurvivesTheRebuild) {
  auto options = options_of(2);
  options.start_iteration = 0;
  options.use_error_feedback = false;
  options.warm_start = false;
  const auto many =
      gradients_of_steps({"threads", 2, false}, 2, 0, 5, [&](auto) { return make_power_sgd_hook(options); });
  EXPECT_EQ(many.size(), 5u);
  // A state that is older than this DDP: warm from its first iteration on.
  std::vector<std::shared_ptr<PowerSGDState>> states;
  for (int rank = 0; rank < 2; ++rank) states.push_back(std::make_shared<PowerSGDState>(options_of(1)));
  const Make shared = [&](auto group) { return make_power_sgd_hook(states[static_cast<std::size_t>(group->rank())]); };
  (void)gradients_of_steps({"threads", 1, false}, 2, 0, 4, shared);
  const at::Tensor error = states[0]->error("layer2.weight");
  ASSERT_TRUE(error.defined());
  EXPECT_GT(error.norm().item<double>(), 0);
  (void)gradients_of_steps({"threads", 1, false}, 2, 4, 7, shared);
  EXPECT_FALSE(states[0]->error("layer2.bias").defined());
}

// Training itself: the loss falls nearly as it does without compression.
TEST(PowerSgdDdpTraining, ConvergesWithErrorFeedback) {
  const auto final_loss = [](const Make& make) {
    double loss = 0;
    run_ranks({"threads", 2, true}, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      Mlp net(3, kWidth);
      auto options = options_for({"threads", 2, true}, group);
      options.bucket_cap_mb = 0.002;
      DistributedDataParallel ddp(net, options);
      if (const auto hook = make(group)) ddp.register_comm_hook(hook);
      torch::optim::SGD optimizer(ddp.parameters(), 0.05);
      for (int step = 0; step < 150; ++step) {
        const at::Tensor x = batch(rank, step % 10, 8);
        ddp.zero_grad();
        at::Tensor error = (ddp(x) - torch::tanh(x.roll(1, 1))).pow(2).mean() * 20;
        error.backward();
        optimizer.step();
        if (rank == 0 && step >= 140) loss += error.item<double>();
      }
    });
    return loss;
  };
  const double plain = final_loss([](auto) { return nullptr; });
  const double compressed = final_loss([](auto) { return make_power_sgd_hook(options_of(4)); });
  EXPECT_LT(compressed, 1.05 * plain) << plain;
}

}  // namespace
}  // namespace gradwire::testing::power_sgd_ddp_test

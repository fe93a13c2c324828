// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What an Inf or a NaN in one bucket of one rank does: it reaches all ranks, and leaves no trace in any memory.
#include <limits>

#include "gradwire/base/error.h"
#include "gradwire/compress/compressor.h"
#include "gradwire/ddp/ddp_test_support.h"
#include "gradwire/hooks/registry.h"

namespace gradwire::testing::loss_scale_test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::uint32_t kBadStep = 4;
constexpr std::uint32_t kSteps = 8;
constexpr std::size_t kBadBucket = 0;

// Two buckets: a matrix and a vector, a matrix.
std::shared_ptr<const BucketLayout> layout_of(std::size_t index) {
  using Parameters = std::vector<std::pair<std::string, std::vector<std::int64_t>>>;
  const Parameters parameters =
      index == kBadBucket ? Parameters{{"a.weight", {24, 20}}, {"a.bias", {24}}} : Parameters{{"b.weight", {16, 30}}};
  auto layout = std::make_shared<BucketLayout>();
  layout->index = index;
  for (const auto& [name, sizes] : parameters) {
    const at::Tensor like = at::zeros(sizes);
    layout->append(layout->slots.size() + 2 * index, like, like, name);
  }
  return layout;
}

at::Tensor gradient(std::size_t bucket, int rank, std::uint32_t step) {
  return random_tensor({layout_of(bucket)->numel},
                       1000 * static_cast<int>(step) + 10 * rank + static_cast<int>(bucket));
}

at::Tensor average(CommHook& hook, std::size_t index, const at::Tensor& values, ProcessGroup& group,
                   std::uint32_t step) {
  GradBucket bucket(layout_of(index), values.clone(), group, group.size(), /*is_last=*/index == 1, step);
  const Future future = hook.run(bucket);
  future->waitAndThrow();
  return tensor_of(*future).clone();
}

struct Outcome {
  std::vector<at::Tensor> averages;  // of the steps after the bad one
  at::Tensor bad;                    // what became of the bad bucket; undefined where it was left out
  HookState state;
};

// Trains on two buckets; in one step, bucket 0 of the last rank has `value` in it, or does not exist when `value` is 0.
Outcome run(const std::string& spec, int rank, const std::shared_ptr<ProcessGroup>& group, double value) {
  Outcome outcome;
  const auto hook = make_hook(spec);
  for (std::uint32_t step = 0; step < kSteps; ++step) {
    for (std::size_t bucket = 0; bucket < 2; ++bucket) {
      at::Tensor values = gradient(bucket, rank, step);
      const bool bad = step == kBadStep && bucket == kBadBucket;
      if (bad && value == 0) continue;
      if (bad && rank == group->size() - 1) values[333] = value;
      const at::Tensor got = average(*hook, bucket, values, *group, step);
      if (bad) outcome.bad = got;
      if (step > kBadStep) outcome.averages.push_back(got);
    }
  }
  outcome.state = hook->state_dict();
  return outcome;
}

// Every codec with each of the memories and exchanges that it can have.
std::vector<std::string> compressors() {
  std::vector<std::string> specs;
  for (const auto& info : compress::known_compressors()) {
    for (const char* memory : {"none", "error_feedback", "ef21", "momentum"}) {
      for (const char* exchange : {"all_gather", "all_reduce"}) {
        const std::string spec = concat(info.name, ":memory=", memory, ",exchange=", exchange);
        try {
          (void)make_hook(spec);
          specs.push_back(spec);
        } catch (const InvalidArgument&) {
          // A combination that has no meaning: see compress::make_compressor().
        }
      }
    }
  }
  return specs;
}

std::vector<std::string> all_specs() {
  std::vector<std::string> specs = compressors();
  for (const char* spec : {"allreduce", "fp16_compress", "bf16_compress", "quantize_per_tensor", "quantize_per_channel",
                           "power_sgd:rank=2,start=2,min_rate=1", "batched_power_sgd:rank=2,start=2", "sign_sgd"}) {
    specs.emplace_back(spec);
  }
  return specs;
}

TEST(LossScale, EveryCodecHasAMemoryButSigns) { EXPECT_GE(compressors().size(), 8 * 12u); }

// All ranks hold the same bits, not finite somewhere; afterwards averages and memories are, bit for bit, those of a run
// in which that bucket did not come in that step.
TEST(LossScale, AnInfinityReachesAllRanksAndIsForgotten) {
  for (const std::string& spec : all_specs()) {
    for (const double value : {kInfinity, -kInfinity, std::numeric_limits<double>::quiet_NaN()}) {
      SCOPED_TRACE(concat(spec, " with ", value));
      constexpr int kWorld = 3;
      std::vector<at::Tensor> bad(kWorld);
      run_ranks({"threads"}, kWorld, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
        const Outcome disturbed = run(spec, rank, group, value);
        const Outcome undisturbed = run(spec, rank, group, 0);
        bad[static_cast<std::size_t>(rank)] = disturbed.bad;
        ASSERT_EQ(disturbed.averages.size(), undisturbed.averages.size());
        for (std::size_t i = 0; i < disturbed.averages.size(); ++i) {
          EXPECT_TRUE(disturbed.averages[i].isfinite().all().item<bool>()) << "average " << i;
          EXPECT_TRUE(disturbed.averages[i].equal(undisturbed.averages[i])) << "average " << i;
        }
        for (const auto& [key, kept] : undisturbed.state) {
          if (!kept.isTensor()) continue;  // counts of buckets and elements
          EXPECT_TRUE(disturbed.state.at(key).toTensor().equal(kept.toTensor())) << key;
        }
        EXPECT_EQ(disturbed.state.size(), undisturbed.state.size());
      });
      for (const at::Tensor& one : bad) {
        EXPECT_FALSE(one.isfinite().all().item<bool>());
        EXPECT_TRUE(at::equal(one.view(at::kInt), bad[0].view(at::kInt)));
      }
    }
  }
}

// As under a gradient scaler: a step whose gradients are not finite is skipped on all ranks alike, and training goes on
// finite and equal on all of them, also where the other buckets' memories have gone on.
TEST(LossScale, ASkippedStepLeavesTrainingGoingOn) {
  for (const std::string& spec : all_specs()) {
    SCOPED_TRACE(spec);
    std::vector<std::vector<at::Tensor>> parameters(2);
    std::vector<int> skipped(2);
    run_ranks({"threads", 2, false}, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      Mlp net(4, 16);
      DdpOptions options = options_for({"threads", 2, false}, group);
      options.bucket_cap_mb = 0.001;
      DistributedDataParallel ddp(net, options);
      ddp.register_comm_hook(make_hook(spec));
      for (int step = 0; step < 12; ++step) {
        ddp.zero_grad();
        at::Tensor loss = ddp(random_tensor({4, 16}, 10 * step + rank)).pow(2).mean();
        // An overflow in one parameter's gradient of one rank.
        if (step % 4 == 3 && rank == 1) loss = loss + net->parameters()[2].sum() * kInfinity;
        loss.backward();
        bool finite = true;
        for (const auto& g : gradients_of(*net)) finite = finite && g.isfinite().all().item<bool>();
        EXPECT_EQ(finite, step % 4 != 3) << step;
        if (!finite) {
          ++skipped[static_cast<std::size_t>(rank)];
          continue;
        }
        const torch::NoGradGuard no_grad;
        for (auto& parameter : net->parameters()) parameter.sub_(parameter.grad(), 1e-3);
      }
      for (const auto& parameter : net->parameters())
        parameters[static_cast<std::size_t>(rank)].push_back(parameter.detach().clone());
    });
    EXPECT_EQ(skipped, (std::vector<int>{3, 3}));
    for (std::size_t i = 0; i < parameters[0].size(); ++i) {
      EXPECT_TRUE(parameters[0][i].equal(parameters[1][i])) << i;
      EXPECT_TRUE(parameters[0][i].isfinite().all().item<bool>()) << i;
    }
  }
}

}  // namespace
}  // namespace gradwire::testing::loss_scale_test

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include <set>
#include <string_view>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/ddp_test_support.h"
#include "gradwire/hooks/debugging_hooks.h"
#include "gradwire/hooks/default_hooks.h"
#include "gradwire/hooks/registry.h"

namespace gradwire::testing::hooks_test {
namespace {

constexpr int kWorld = 2;

class Hooks : public ::testing::TestWithParam<Setup> {};
INSTANTIATE_TEST_SUITE_P(All, Hooks, ::testing::ValuesIn(all_setups()), name_of_setup);

at::Tensor share(int rank) { return random_tensor({4, 8}, 30).chunk(kWorld)[static_cast<std::size_t>(rank)]; }

// Gradients of rank 0 after three steps, the last of which has several buckets; checks that all ranks hold the same
// bits.
std::vector<at::Tensor> gradients_with(
    const Setup& setup, const std::function<std::shared_ptr<CommHook>(std::shared_ptr<ProcessGroup>)>& make,
    bool replicas_agree = true) {
  std::vector<std::vector<at::Tensor>> gradients(kWorld);
  run_ranks(setup, kWorld, [&](int rank, auto group) {
    Mlp net(6, 8);
    auto options = options_for(setup, group);
    options.bucket_cap_mb = 0.0005;
    DistributedDataParallel ddp(net, options);
    if (const auto hook = make(group)) ddp.register_comm_hook(hook);
    for (int step = 0; step < 3; ++step) {
      ddp.zero_grad();
      ddp(share(rank)).pow(2).mean().backward();
    }
    gradients[static_cast<std::size_t>(rank)] = gradients_of(*net);
  });
  for (std::size_t i = 0; replicas_agree && i < gradients[0].size(); ++i)
    EXPECT_TRUE(gradients[0][i].equal(gradients[1][i])) << "parameter " << i;
  return gradients[0];
}

std::vector<at::Tensor> whole_batch() {
  Mlp alone(6, 8);
  alone->forward(random_tensor({4, 8}, 30)).pow(2).mean().backward();
  return gradients_of(*alone);
}

TEST_P(Hooks, AllreduceEqualsNoHook) {
  const auto plain = gradients_with(GetParam(), [](auto) { return nullptr; });
  expect_close(gradients_with(GetParam(), [](auto) { return make_allreduce_hook(); }), plain);
  expect_close(gradients_with(GetParam(), [](auto group) { return make_allreduce_hook(group); }), plain);
}

TEST_P(Hooks, Fp16IsCloseToNoHookAndRounds) {
  const auto compressed = gradients_with(GetParam(), [](auto) { return make_hook("fp16_compress"); });
  expect_close(compressed, whole_batch(), 1e-4);
  for (const auto& gradient : compressed) EXPECT_TRUE(gradient.equal(gradient.to(at::kHalf).to(at::kFloat)));
}

TEST_P(Hooks, Bf16IsCloseToNoHookAndRounds) {
  const auto compressed = gradients_with(GetParam(), [](auto) { return make_hook("bf16_compress"); });
  expect_close(compressed, whole_batch(), 1e-3);
  for (const auto& gradient : compressed) EXPECT_TRUE(gradient.equal(gradient.to(at::kBFloat16).to(at::kFloat)));
}

// The compression is PyTorch's, element by element: cast, divide in the narrow type, sum, cast back.
TEST_P(Hooks, CompressionFollowsPyTorchsSteps) {
  for (const auto narrow : {at::kHalf, at::kBFloat16}) {
    std::vector<at::Tensor> parts;
    for (int rank = 0; rank < kWorld; ++rank) {
      Mlp alone(6, 8);
      alone->forward(share(rank)).pow(2).mean().backward();
      at::Tensor flat = at::cat([&] {
        std::vector<at::Tensor> pieces;
        for (const auto& gradient : gradients_of(*alone)) pieces.push_back(gradient.reshape(-1));
        return pieces;
      }());
      parts.push_back(flat.to(narrow).div_(kWorld));
    }
    const at::Tensor expected = (parts[0] + parts[1]).to(at::kFloat);
    const auto got = gradients_with(
        GetParam(), [&](auto) { return make_hook(narrow == at::kHalf ? "fp16_compress" : "bf16_compress"); });
    std::int64_t offset = 0;
    for (const auto& gradient : got) {
      EXPECT_TRUE(gradient.reshape(-1).equal(expected.narrow(0, offset, gradient.numel())));
      offset += gradient.numel();
    }
  }
}

TEST_P(Hooks, NoopKeepsEachRanksOwnGradients) {
  Mlp alone(6, 8);
  alone->forward(share(0)).pow(2).mean().backward();
  expect_close(gradients_with(
                   GetParam(), [](auto) { return make_noop_hook(); }, /*replicas_agree=*/false),
               gradients_of(*alone));
}

TEST_P(Hooks, RegisteredByTypeLikeInPyTorch) {
  run_ranks(GetParam(), kWorld, [&](int rank, auto group) {
    Mlp net(6, 8);
    DistributedDataParallel ddp(net, options_for(GetParam(), group));
    register_ddp_comm_hook(DDPCommHookType::ALLREDUCE, ddp, group);
    ddp(share(rank)).pow(2).mean().backward();
    expect_close(gradients_of(*net), whole_batch());
  });
}

std::string error_for(std::string_view spec) {
  return error_of([&] { (void)make_hook(spec); });
}

TEST(HookRegistry, NamesEveryType) {
  std::set<std::string_view> names;
  for (int type = 0; type < 10; ++type) names.insert(name_of(static_cast<DDPCommHookType>(type)));
  EXPECT_EQ(names.size(), 10u);
  EXPECT_EQ(name_of(DDPCommHookType::POWER_SGD_RANK2), "power_sgd_rank2");
  EXPECT_EQ(name_of(DDPCommHookType::NOOP), "noop");
}

TEST(HookRegistry, MakesWhatItLists) {
  EXPECT_GE(hook_names().size(), 20U);
  for (const std::string& name : hook_names()) EXPECT_FALSE(make_hook(name)->traits().name.empty()) << name;
  EXPECT_EQ(make_hook("  noop ")->traits().name, "noop");
  EXPECT_EQ(make_hook(DDPCommHookType::BF16_COMPRESS)->traits().name, "bf16_compress");
}

TEST(HookRegistry, ErrorsListWhatIsRight) {
  EXPECT_NE(error_for("alreduce").find("allreduce, fp16_compress, bf16_compress, quantize_per_tensor"),
            std::string::npos)
      << error_for("alreduce");
  EXPECT_NE(error_for("").find("allreduce"), std::string::npos);
  EXPECT_NE(error_for("noop:rank=4").find("has no option 'rank'; its options are warm_up=0,min=0,wrap="),
            std::string::npos)
      << error_for("noop:rank=4");
  EXPECT_NE(error_for("noop:rank").find("OPTION=VALUE"), std::string::npos) << error_for("noop:rank");
  EXPECT_NE(error_for("power_sgd:rnk=4").find("rank=1,start=1000"), std::string::npos) << error_for("power_sgd:rnk=4");
  EXPECT_NE(error_for("int8:blok=4").find("block=256"), std::string::npos) << error_for("int8:blok=4");
  EXPECT_NE(error_for("int8:min=4Xi").find("64Ki"), std::string::npos) << error_for("int8:min=4Xi");
  for (const auto& [spec, meant] : {std::pair("alreduce", "allreduce"), std::pair("powersgd:rank=2", "power_sgd"),
                                    std::pair("int9", "int8"), std::pair("power_sgd:rnk=4", "rank"),
                                    std::pair("int8:blok=4", "block"), std::pair("noop:warmup=3", "warm_up")}) {
    const std::string error = error_for(spec);
    EXPECT_NE(error.find(concat("; did you mean '", meant, "'?")), std::string::npos) << error;
  }
  EXPECT_EQ(error_for("something_else").find("did you mean"), std::string::npos);
  EXPECT_NE(error_for("power_sgd:start=1").find("start"), std::string::npos);
  EXPECT_NE(error_for("int8:wrap=fp8").find("bf16"), std::string::npos);
}

// As in PyTorch, the result is the average over the group that sums.
TEST(HookGroups, ASubgroupGivesTheAverageOfItsRanks) {
  constexpr int kRanks = 4;
  const auto input = [](int rank) { return random_tensor({4, 8}, 40 + rank); };
  for (const std::string spec : {"allreduce", "fp16_compress", "bf16_compress", "quantize_per_tensor",
                                 "quantize_per_channel", "int8", "power_sgd:rank=8,start=2,min_rate=1"}) {
    SCOPED_TRACE(spec);
    run_ranks({"threads"}, kRanks, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      const auto pair = group->split(rank / 2);
      Mlp net;
      DistributedDataParallel ddp(net, options_for({"threads"}, group));
      ddp.register_comm_hook(make_hook(spec, pair));
      for (int step = 0; step < 4; ++step) {
        ddp.zero_grad();
        ddp(input(rank)).square().sum().backward();
      }
      Mlp alone;
      for (const int other : {rank / 2 * 2, rank / 2 * 2 + 1})
        (alone->forward(input(other)).square().sum() / 2).backward();
      const auto expected = gradients_of(*alone);
      const auto actual = gradients_of(*net);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const double scale = expected[i].abs().max().item<double>();
        EXPECT_LT((actual[i] - expected[i]).abs().max().item<double>(), 0.05 * scale) << "rank " << rank << ", " << i;
      }
    });
  }
}

}  // namespace
}  // namespace gradwire::testing::hooks_test

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Parameters whose gradients are reduced together, when that of another parameter is there.
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/embedding.h>

#include "gradwire/ddp/ddp_parameters_test_support.h"
#include "gradwire/ddp/ddp_test_support.h"

namespace gradwire::testing::ddp_parameters_test::delayed {
namespace {

TEST_P(DdpParameters, DelayedParametersAreAveragedToo) {
  const std::vector<std::string> last{"layer2.weight", "layer2.bias"};
  const std::vector<std::string> most{"layer0.weight", "layer1.weight", "layer1.bias", "layer2.weight", "layer2.bias"};
  for (const bool all : {false, true}) {
    run_ranks(GetParam(), 2, [&](int rank, auto group) {
      const auto input = [](int r, int step) { return random_tensor({2, 8}, 50 * r + step).to(at::kDouble); };
      auto made = options(group);
      made.delay_all_reduce_named_params = all ? most : last;
      made.param_to_hook_all_reduce = all ? "layer0.weight" : "layer1.weight";
      if (all) made.parameters_and_buffers_to_ignore = {"layer0.bias"};
      Mlp net;
      net->to(at::kDouble);
      DistributedDataParallel ddp(net, made);
      for (int step = 0; step < 3; ++step) {
        SCOPED_TRACE(concat("rank ", rank, ", step ", step, all ? ", all of them" : ""));
        ddp.zero_grad(step != 1);
        if (step == 2) {
          const auto local = ddp.no_sync();
          ddp(input(rank, 7)).square().sum().backward();
        }
        ddp(input(rank, step)).square().sum().backward();
        Mlp alone;
        alone->to(at::kDouble);
        for (int other = 0; other < 2; ++other) {
          if (step == 2) (alone->forward(input(other, 7)).square().sum() / 2).backward();
          (alone->forward(input(other, step)).square().sum() / 2).backward();
        }
        auto mine = gradients_of(*net);
        auto expected = gradients_of(*alone);
        if (all) mine[1] = expected[1] = at::Tensor();  // layer0.bias
        expect_close(mine, expected, 1e-12);
      }
    });
  }
}

// Two layers have one weight, which libtorch lists under both names.
TEST_P(DdpParameters, ASharedParameterMayBeDelayedUnderAnyOfItsNames) {
  struct Layer : torch::nn::Module {
    explicit Layer(const at::Tensor& shared) { weight = register_parameter("weight", shared); }
    at::Tensor weight;
  };
  struct Tied : torch::nn::Module {
    Tied() {
      first = register_parameter("first", at::ones({4}));
      encoder = register_module("encoder", std::make_shared<Layer>(at::ones({1 << 16})));
      decoder = register_module("decoder", std::make_shared<Layer>(encoder->weight));
    }
    at::Tensor forward(const at::Tensor& x) { return (encoder->weight * x).sum() * first.square().sum(); }
    at::Tensor first;
    std::shared_ptr<Layer> encoder, decoder;
  };
  for (const std::vector<std::string>& names : std::vector<std::vector<std::string>>{
           {"encoder.weight"}, {"decoder.weight"}, {"decoder.weight", "encoder.weight"}}) {
    run_ranks(GetParam(), 2, [&](int rank, auto group) {
      auto made = options(group);
      made.delay_all_reduce_named_params = names;
      made.param_to_hook_all_reduce = "first";
      const auto net = std::make_shared<Tied>();
      DistributedDataParallel<Tied> ddp(net, made);
      EXPECT_EQ(ddp.core().bucket_plan(), (std::vector<std::vector<std::size_t>>{{0}})) << "`first` alone";
      for (int step = 0; step < 5; ++step) {
        ddp.zero_grad(step % 2 == 0);
        ddp(at::full({}, 1.0 + 2 * rank)).backward();
        EXPECT_TRUE(net->encoder->weight.grad().eq(8).all().item<bool>()) << "step " << step << ", rank " << rank;
      }
    });
  }
}

// DDP does not see the outputs, so the first gradient begins the pass: a delayed one on rank 0, another one on rank 1.
TEST_P(DdpParameters, ADelayedParameterThatOneRankUsesIsReducedByAll) {
  struct Parts : torch::nn::Module {
    Parts() {
      plain = register_parameter("plain", at::ones({4}));
      delayed = register_parameter("delayed", at::ones({4}));
      trigger = register_parameter("trigger", at::ones({4}));
    }
    at::Tensor plain, delayed, trigger;
  };
  run_ranks(GetParam(), 2, [&](int rank, auto group) {
    auto made = options(group);
    made.find_unused_parameters = true;
    made.delay_all_reduce_named_params = {"delayed"};
    made.param_to_hook_all_reduce = "trigger";
    const auto net = std::make_shared<Parts>();
    DdpCore core(net, made);
    for (int step = 0; step < 3; ++step) {
      for (const at::Tensor& parameter : net->parameters()) parameter.mutable_grad().reset();
      core.before_forward();
      const at::Tensor output = (rank == 0 ? net->delayed : net->plain).sum() * 2;
      core.after_forward({});
      output.backward();
      EXPECT_TRUE(net->delayed.grad().eq(1).all().item<bool>()) << "step " << step << ", rank " << rank;
      EXPECT_TRUE(net->plain.grad().eq(1).all().item<bool>()) << "step " << step << ", rank " << rank;
    }
  });
}

TEST_P(DdpParameters, AllParametersMayBeDelayed) {
  run_ranks(GetParam(), 2, [&](int rank, auto group) {
    auto made = options(group);
    Mlp net;
    for (const auto& parameter : net->named_parameters()) made.delay_all_reduce_named_params.push_back(parameter.key());
    made.param_to_hook_all_reduce = "layer0.weight";
    DistributedDataParallel ddp(net, made);
    for (int step = 0; step < 3; ++step) {
      ddp.zero_grad();
      ddp(random_tensor({2, 8}, 10 * rank + step)).sum().backward();
      Mlp alone;
      for (int other = 0; other < 2; ++other)
        (alone->forward(random_tensor({2, 8}, 10 * other + step)).sum() / 2).backward();
      expect_close(gradients_of(*net), gradients_of(*alone));
      EXPECT_EQ(ddp.core().iterations(), static_cast<std::uint32_t>(step) + 1);
      ddp.replace_comm_hook(nullptr);
      EXPECT_GE(ddp.logging_data().last.backward_compute.count(), 0);
    }
  });
}

// The sums over the ranks are beyond float16's range, the averages are not.
TEST_P(DdpParameters, AveragesOfHalvesAreFiniteWhereSumsAreNot) {
  struct Halves : torch::nn::Module {
    Halves() {
      table = register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(3, 2).sparse(true)));
      to(at::kHalf);
      plain = register_parameter("plain", at::zeros({5}, at::kHalf));
      delayed = register_parameter("delayed", at::zeros({5}, at::kHalf));
    }
    at::Tensor forward(double factor) {
      return at::cat({plain, delayed, table(at::zeros({1}, at::kLong)).flatten()}) * factor;
    }
    torch::nn::Embedding table{nullptr};
    at::Tensor plain, delayed;
  };
  run_ranks(GetParam(), 2, [&](int rank, auto group) {
    auto made = options(group);
    made.delay_all_reduce_named_params = {"delayed"};
    made.param_to_hook_all_reduce = "plain";
    const auto net = std::make_shared<Halves>();
    DistributedDataParallel<Halves> ddp(net, made);
    ddp(40000.0 + 2048 * rank).backward(at::ones({12}, at::kHalf));
    const at::Tensor row = net->table->weight.grad().to_dense()[0];
    for (const at::Tensor& average : {net->plain.grad(), net->delayed.grad(), row})
      EXPECT_TRUE(at::equal(average.to(at::kDouble), at::full(average.sizes(), 41024.0, at::kDouble))) << average;
  });
}

// The trigger's gradient comes before those of the delayed parameters, which are not taken for zeros.
TEST_P(DdpParameters, ATriggerMayComeBeforeTheDelayedParameters) {
  run_ranks(GetParam(), 2, [&](int rank, auto group) {
    const auto input = [](int r, int step) { return random_tensor({2, 8}, 50 * r + step).to(at::kDouble); };
    auto made = options(group);
    made.delay_all_reduce_named_params = {"layer0.weight", "layer0.bias"};
    made.param_to_hook_all_reduce = "layer2.weight";
    Mlp net;
    net->to(at::kDouble);
    DistributedDataParallel ddp(net, made);
    for (int step = 0; step < 3; ++step) {
      ddp.zero_grad(step != 1);
      ddp(input(rank, step)).square().sum().backward();
      Mlp alone;
      alone->to(at::kDouble);
      for (int other = 0; other < 2; ++other) (alone->forward(input(other, step)).square().sum() / 2).backward();
      expect_close(gradients_of(*net), gradients_of(*alone), 1e-12);
    }
  });
}

// Mixed precision gives parameters new accumulators in each forward: the delayed ones must not be lost sight of.
TEST_P(DdpParameters, DelayedParametersInALowerPrecision) {
  for (const bool wide : {true, false}) {
    run_ranks(GetParam(), 2, [&](int rank, auto group) {
      auto made = options(group);
      made.delay_all_reduce_named_params = {"layer2.weight", "layer2.bias"};
      made.param_to_hook_all_reduce = "layer1.weight";
      made.mixed_precision = MixedPrecision{.param_dtype = at::kBFloat16};
      const at::ScalarType reduce = wide ? at::kFloat : at::kBFloat16;
      if (wide) made.mixed_precision->reduce_dtype = at::kFloat;
      Mlp net;
      DistributedDataParallel ddp(net, made);
      for (int step = 0; step < 3; ++step) {
        SCOPED_TRACE(concat("rank ", rank, ", step ", step, ", reduced in ", reduce));
        ddp.zero_grad(step != 1);
        ddp(random_tensor({2, 8}, 50 * rank + step)).square().sum().backward();
        std::vector<at::Tensor> expected;
        for (int other = 0; other < 2; ++other) {
          Mlp alone;
          alone->to(at::kBFloat16);
          alone->forward(random_tensor({2, 8}, 50 * other + step).to(at::kBFloat16)).square().sum().backward();
          const auto gradients = gradients_of(*alone);
          for (std::size_t i = 0; i < gradients.size(); ++i) {
            const at::Tensor mine = gradients[i].to(reduce);
            if (other == 0) expected.push_back(mine);
            if (other == 1) expected[i] = ((expected[i] + mine) / 2).to(at::kFloat);
          }
        }
        const auto mine = gradients_of(*net);
        for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::equal(mine[i], expected[i])) << i;
      }
    });
  }
}

// Frozen delayed parameters and a frozen trigger; the parameters have new accumulators in each iteration.
TEST_P(DdpParameters, DelayedParametersMayBeFrozenAndThawed) {
  for (const bool low : {false, true}) {
    run_ranks(GetParam(), 2, [&](int rank, auto group) {
      auto made = with_one_delayed(group);
      made.find_unused_parameters = true;
      if (low) made.mixed_precision = MixedPrecision{.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat};
      Mlp net;
      DistributedDataParallel ddp(net, made);
      for (int step = 0; step < 6; ++step) {
        SCOPED_TRACE(concat("rank ", rank, ", step ", step, low ? ", in a lower precision" : ""));
        const bool frozen = step / 2 == 1;
        net->linears[1]->weight.set_requires_grad(!frozen);
        net->linears[2]->weight.set_requires_grad(!frozen);
        net->to(at::kDouble);
        net->to(at::kFloat);
        ddp.zero_grad();
        ddp(random_tensor({2, 8}, 50 * rank + step)).square().sum().backward();
        const auto loss = [&](Mlp& alone, int other) {
          const at::Tensor x = random_tensor({2, 8}, 50 * other + step);
          return alone->forward(low ? x.to(at::kBFloat16) : x).square().sum();
        };
        std::vector<at::Tensor> expected;
        if (low) {
          expected = low_average(loss);
        } else {
          Mlp alone;
          for (int other = 0; other < 2; ++other) (loss(alone, other) / 2).backward();
          expected = gradients_of(*alone);
        }
        if (frozen) expected[2] = at::Tensor();
        if (frozen) expected[4].zero_();  // reduced, as every delayed gradient
        expect_close(gradients_of(*net), expected);
      }
    });
  }
}

TEST_P(DdpParameters, TwoForwardsThenTwoBackwardsReduceDelayedParametersTwice) {
  run_ranks(GetParam(), 2, [&](int rank, auto group) {
    const auto input = [](int r, int step) { return random_tensor({2, 8}, 50 * r + step).to(at::kDouble); };
    Mlp net, alone;
    net->to(at::kDouble);
    alone->to(at::kDouble);
    DistributedDataParallel ddp(net, with_one_delayed(group));
    const at::Tensor first = ddp(input(rank, 0)).square().sum();
    const at::Tensor second = ddp(input(rank, 1)).square().sum();
    first.backward();
    second.backward();
    for (int other = 0; other < 2; ++other)
      for (const int step : {0, 1}) (alone->forward(input(other, step)).square().sum() / 2).backward();
    expect_close(gradients_of(*net), gradients_of(*alone), 1e-12);
  });
}

// torch::autograd::grad() of an input, for a log, on one rank alone.
TEST_P(DdpParameters, APassWithoutGradientsOfDelayedParametersReducesNone) {
  run_ranks(GetParam(), 2, [&](int rank, auto group) {
    const auto input = [](int r) { return random_tensor({2, 8}, 50 * r).to(at::kDouble); };
    Mlp net, alone;
    net->to(at::kDouble);
    alone->to(at::kDouble);
    DistributedDataParallel ddp(net, with_one_delayed(group));
    const at::Tensor x = input(rank).requires_grad_();
    const at::Tensor loss = ddp(x).square().sum();
    if (rank == 0) torch::autograd::grad({loss}, {x}, {}, /*retain_graph=*/true);
    for (const at::Tensor& parameter : net->parameters()) EXPECT_FALSE(parameter.grad().defined());
    loss.backward();
    for (int other = 0; other < 2; ++other) (alone->forward(input(other)).square().sum() / 2).backward();
    expect_close(gradients_of(*net), gradients_of(*alone), 1e-12);
  });
}

}  // namespace
}  // namespace gradwire::testing::ddp_parameters_test::delayed

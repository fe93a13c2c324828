// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Parameters that are complex, frozen for a while, ignored, or shared; and what a checkpoint calls them.
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/utils/convert_parameters.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <sstream>

#include "gradwire/ddp/ddp_parameters_test_support.h"
#include "gradwire/ddp/ddp_test_support.h"

namespace gradwire::testing::ddp_parameters_test::plain {
namespace {

struct ComplexImpl : torch::nn::Module {
  ComplexImpl() {
    const auto make = [](int seed) {
      return at::complex(random_tensor({3, 4}, seed).to(at::kDouble), random_tensor({3, 4}, seed + 1).to(at::kDouble));
    };
    wide = register_parameter("wide", make(1));
    narrow = register_parameter("narrow", make(3).to(at::kComplexFloat));
    real = register_parameter("real", random_tensor({4}, 5).to(at::kDouble));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor h = torch::matmul(wide * narrow, (x * real).to(at::kComplexDouble));
    return at::real(h * h.conj()).sum() + at::imag(h).sum();
  }
  at::Tensor wide, narrow, real;
};
TORCH_MODULE(Complex);

TEST_P(DdpParameters, ComplexParameters) {
  for (const bool hook : {false, true}) {
    run_ranks(GetParam(), 3, [&](int rank, auto group) {
      const auto input = [](int r, int step) { return random_tensor({4}, 50 * r + step).to(at::kDouble); };
      Complex net;
      DistributedDataParallel ddp(net, options(group));
      if (hook) {
        ddp.register_comm_hook([](GradBucket& bucket) {
          bucket.group().all_reduce({bucket.buffer().div_(bucket.divisor())})->wait();
          return bucket.buffer();
        });
      }
      for (int step = 0; step < 3; ++step) {
        ddp.zero_grad();
        ddp(input(rank, step)).backward();
        Complex alone;
        for (int other = 0; other < 3; ++other) (alone->forward(input(other, step)) / 3).backward();
        expect_close(gradients_of(*net), gradients_of(*alone), 1e-6);
      }
    });
  }
}

// Frozen after the module was wrapped, and thawed again, as fine-tuning schedules do; also where the parameters get new
// accumulators meanwhile, as from a checkpoint that is loaded.
// The backward pass of a complex number that is made of two parameters gives the second one a gradient that is negated
// lazily: its memory holds the opposite.
struct PairImpl : torch::nn::Module {
  PairImpl() {
    real = register_parameter("real", at::full({}, 2.0, at::kDouble));
    imaginary = register_parameter("imaginary", at::full({}, 3.0, at::kDouble));
  }
  at::Tensor forward(const at::Tensor& factor) { return at::real(at::complex(real, imaginary).conj() * factor).sum(); }
  at::Tensor real, imaginary;
};
TORCH_MODULE(Pair);

TEST_P(DdpParameters, GradientsThatAreNegatedLazily) {
  run_ranks(GetParam(), 2, [&](int rank, auto group) {
    const at::Tensor factor =
        at::complex(at::full({}, 1.0 + rank, at::kDouble), at::full({}, 10.0 + rank, at::kDouble));
    Pair alone, wrapped;
    alone->forward(factor).backward();
    ASSERT_TRUE(alone->imaginary.grad().is_neg()) << "or this test proves nothing";
    DistributedDataParallel ddp(wrapped, options(group));
    ddp(factor).backward();
    EXPECT_EQ(wrapped->real.grad().item().toDouble(), 1.5);
    EXPECT_EQ(wrapped->imaginary.grad().item().toDouble(), 10.5);
  });
}

TEST_P(DdpParameters, FrozenAndThawedBetweenIterations) {
  for (const bool anew : {false, true}) {
    run_ranks(GetParam(), 2, [&](int rank, auto group) {
      Mlp net;
      net->to(at::kDouble);
      auto made = options(group);
      made.find_unused_parameters = true;
      DistributedDataParallel ddp(net, made);
      const auto input = [](int r, int step) { return random_tensor({2, 8}, 50 * r + step).to(at::kDouble); };
      for (int step = 0; step < 6; ++step) {
        SCOPED_TRACE(concat("rank ", rank, ", step ", step, anew ? ", with new accumulators" : ""));
        const auto freeze = [step](Mlp& module) {
          for (auto& parameter : module->linears[0]->parameters()) parameter.set_requires_grad(step / 2 != 1);
        };
        freeze(net);
        if (anew) {
          net->to(at::kFloat);  // the values are those of floats
          net->to(at::kDouble);
        }
        ddp.zero_grad();
        ddp(input(rank, step)).square().sum().backward();
        Mlp alone;
        alone->to(at::kDouble);
        freeze(alone);
        for (int other = 0; other < 2; ++other) (alone->forward(input(other, step)).square().sum() / 2).backward();
        expect_close(gradients_of(*net), gradients_of(*alone), 1e-12);
      }
    });
  }
}

TEST_P(DdpParameters, FrozenAndThawedInALowerPrecision) {
  run_ranks(GetParam(), 2, [&](int rank, auto group) {
    Mlp net;
    auto made = options(group);
    made.find_unused_parameters = true;
    made.mixed_precision = MixedPrecision{.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat};
    DistributedDataParallel ddp(net, made);
    for (int step = 0; step < 6; ++step) {
      SCOPED_TRACE(concat("rank ", rank, ", step ", step));
      const auto freeze = [step](Mlp& module) {
        for (auto& parameter : module->linears[0]->parameters()) parameter.set_requires_grad(step / 2 != 1);
      };
      freeze(net);
      ddp.zero_grad();
      ddp(random_tensor({2, 8}, 50 * rank + step)).square().sum().backward();
      expect_close(gradients_of(*net), low_average([&](Mlp& alone, int other) {
                     freeze(alone);
                     return alone->forward(random_tensor({2, 8}, 50 * other + step).to(at::kBFloat16)).square().sum();
                   }));
    }
  });
}

// Of a module that has the lower precision already, mixed precision changes no parameter.
TEST_P(DdpParameters, NewAccumulatorsOfParametersThatHaveTheLowerPrecisionAlready) {
  run_ranks(GetParam(), 2, [&](int rank, auto group) {
    Mlp net;
    net->to(at::kBFloat16);
    auto made = options(group);
    made.mixed_precision = MixedPrecision{.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat};
    DistributedDataParallel ddp(net, made);
    for (int step = 0; step < 4; ++step) {
      SCOPED_TRACE(concat("rank ", rank, ", step ", step));
      if (step == 2) {
        net->to(at::kFloat);
        net->to(at::kBFloat16);
      }
      ddp.zero_grad();
      ddp(random_tensor({2, 8}, 50 * rank + step)).square().sum().backward();
      auto expected = low_average([&](Mlp& alone, int other) {
        return alone->forward(random_tensor({2, 8}, 50 * other + step).to(at::kBFloat16)).square().sum();
      });
      for (auto& each : expected) each = each.to(at::kBFloat16);
      expect_close(gradients_of(*net), expected);
    }
  });
}

// What a local pass uses counts in the next synchronized one, also where the parameters got new accumulators before it.
TEST_P(DdpParameters, NewAccumulatorsBeforeALocalPass) {
  struct Branches : torch::nn::Module {
    Branches() {
      first = register_parameter("first", at::ones({2})), second = register_parameter("second", at::ones({2}));
    }
    at::Tensor forward(const at::Tensor& x, bool uses_second) {
      const at::Tensor sum = (first * x).sum();
      return uses_second ? sum + (second * x).sum() : sum;
    }
    at::Tensor first, second;
  };
  run_ranks(GetParam(), 2, [&](int rank, auto group) {
    auto net = std::make_shared<Branches>();
    auto made = options(group);
    made.find_unused_parameters = true;
    DistributedDataParallel<Branches> ddp(net, made);
    const at::Tensor x = at::full({2}, rank + 1.0, at::kFloat);
    for (int step = 0; step < 2; ++step) ddp(x, true).backward();
    ddp.zero_grad();
    net->to(at::kDouble);
    net->to(at::kFloat);
    {
      const auto guard = ddp.no_sync();
      ddp(x, true).backward();
    }
    ddp(x, false).backward();
    EXPECT_TRUE(net->second.grad().equal(at::full({2}, 1.5F))) << net->second.grad();
    EXPECT_TRUE(net->first.grad().equal(at::full({2}, 3.0F))) << net->first.grad();
  });
}

// A module may convert its parameters in its forward.
TEST_P(DdpParameters, NewAccumulatorsWithinAForward) {
  struct Converting : torch::nn::Module {
    Converting() : inner(register_module("inner", Mlp())) {}
    at::Tensor forward(const at::Tensor& x) {
      inner->to(at::kDouble);
      inner->to(at::kFloat);
      return inner->forward(x);
    }
    Mlp inner;
  };
  run_ranks(GetParam(), 2, [&](int rank, auto group) {
    const auto net = std::make_shared<Converting>();
    DistributedDataParallel<Converting> ddp(net, options(group));
    for (int step = 0; step < 3; ++step) {
      ddp.zero_grad();
      ddp(random_tensor({2, 8}, 50 * rank + step)).square().sum().backward();
      Mlp alone;
      for (int other = 0; other < 2; ++other)
        (alone->forward(random_tensor({2, 8}, 50 * other + step)).square().sum() / 2).backward();
      expect_close(gradients_of(*net), gradients_of(*alone));
    }
  });
}

TEST_P(DdpParameters, ThawedAfterItWasWrappedFrozenIsAnError) {
  run_ranks(GetParam(), 2, [&](int rank, auto group) {
    Mlp net;
    net->linears[1]->bias.set_requires_grad(false);
    DistributedDataParallel ddp(net, options(group));
    ddp(random_tensor({2, 8}, rank)).sum().backward();
    net->linears[1]->bias.set_requires_grad(true);
    const std::string error = error_of([&] { ddp(random_tensor({2, 8}, rank)); });
    EXPECT_NE(error.find("'layer1.bias'"), std::string::npos) << error;
  });
}

// What is ignored may even have another shape on each rank.
TEST_P(DdpParameters, IgnoredParametersAndBuffersStayLocal) {
  struct Own : torch::nn::Module {
    explicit Own(int rank) {
      shared = register_parameter("shared", at::full({3}, rank + 1.0));
      own = register_parameter("own", at::full({3}, rank + 1.0));
      size = register_parameter("size", at::ones({rank + 1}));
      mine = register_buffer("mine", at::full({2}, rank + 1.0));
      common = register_buffer("common", at::full({2}, rank + 1.0));
    }
    at::Tensor forward(double factor) { return (shared.sum() + own.sum() + size.sum()) * factor; }
    at::Tensor shared, own, size, mine, common;
  };
  run_ranks(GetParam(), 2, [&](int rank, auto group) {
    auto made = options(group);
    made.parameters_and_buffers_to_ignore = {"own", "size", "mine"};
    auto net = std::make_shared<Own>(rank);
    DistributedDataParallel<Own> ddp(net, made);
    for (int step = 0; step < 3; ++step) {
      ddp.zero_grad();
      ddp(rank + 1.0).backward();
      EXPECT_TRUE(at::equal(net->shared.grad(), at::full({3}, 1.5)));
      EXPECT_TRUE(at::equal(net->own.grad(), at::full({3}, rank + 1.0)));
    }
    EXPECT_EQ(net->shared[0].item<float>(), 1);
    EXPECT_EQ(net->own[0].item<float>(), rank + 1);
    EXPECT_EQ(net->mine[0].item<float>(), rank + 1);
    EXPECT_EQ(net->common[0].item<float>(), 1);
    EXPECT_EQ(ddp.logging_data().num_parameter_tensors, 1U);
  });
}

TEST_P(DdpParameters, AParameterThatTwoModulesShareIsListedOnce) {
  run_ranks(GetParam(), 2, [&](int, auto group) {
    struct TiedImpl : torch::nn::Module {
      TiedImpl() {
        first = register_module("first", torch::nn::Linear(8, 8));
        register_module("second", first);
      }
      at::Tensor forward(const at::Tensor& x) { return first(first(x)); }
      torch::nn::Linear first{nullptr};
    };
    DistributedDataParallel ddp(std::make_shared<TiedImpl>(), options(group));
    ASSERT_EQ(ddp.parameters().size(), 2U);
    EXPECT_FALSE(ddp.parameters()[0].is_same(ddp.parameters()[1]));
  });
}

class DdpGroups : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Lanes, DdpGroups, ::testing::Values(0, 1, 3));

TEST_P(DdpGroups, TwoModulesOnDifferentGroups) {
  const gradwire::testing::Setup setup{"threads", GetParam(), false};
  run_ranks(setup, 3, [&](int rank, auto group) {
    const auto pair = group->split(rank < 2 ? 0 : 1);
    Mlp wide, paired;
    wide->to(at::kDouble);
    paired->to(at::kDouble);
    DistributedDataParallel all(wide, options_for(setup, group));
    DistributedDataParallel some(paired, options_for(setup, pair));
    const auto input = [](int r, int step) { return random_tensor({2, 8}, 50 * r + step).to(at::kDouble); };
    for (int step = 0; step < 3; ++step) {
      all.zero_grad();
      some.zero_grad();
      some(all(input(rank, step))).square().sum().backward();
      std::vector<std::vector<at::Tensor>> wides, pairs;
      for (int r = 0; r < 3; ++r) {
        Mlp first, second;
        first->to(at::kDouble);
        second->to(at::kDouble);
        second->forward(first->forward(input(r, step))).square().sum().backward();
        wides.push_back(gradients_of(*first));
        pairs.push_back(gradients_of(*second));
      }
      for (std::size_t i = 0; i < wides[0].size(); ++i) {
        EXPECT_TRUE(
            at::allclose(wide->parameters()[i].grad(), (wides[0][i] + wides[1][i] + wides[2][i]) / 3, 0, 1e-12));
        const at::Tensor expected = rank < 2 ? (pairs[0][i] + pairs[1][i]) / 2 : pairs[2][i];
        EXPECT_TRUE(at::allclose(paired->parameters()[i].grad(), expected, 0, 1e-12));
      }
    }
  });
}

TEST_P(DdpParameters, CheckpointsHaveTheInnerModulesNames) {
  run_ranks(GetParam(), 2, [&](int, auto group) {
    Mlp net;
    DistributedDataParallel ddp(net, options(group));
    EXPECT_TRUE(ddp.named_parameters().contains("layer0.weight"));
    std::stringstream wrapped, plain;
    torch::save(ddp, wrapped);
    torch::save(net, plain);
    Mlp other(3, 8, 77);
    torch::load(other, wrapped);
    EXPECT_TRUE(at::equal(other->linears[2]->weight, net->linears[2]->weight));
    const torch::NoGradGuard no_grad;
    net->linears[2]->weight.zero_();
    torch::load(ddp, plain);
    EXPECT_TRUE(at::equal(other->linears[2]->weight, net->linears[2]->weight));
  });
}

// torch::load() gives the module's parameters other tensors: DDP goes on with those, whichever way they came.
TEST_P(DdpParameters, TrainingGoesOnFromACheckpointThatWasLoadedAfterWrapping) {
  for (const bool low : {false, true}) {
    for (const bool through_ddp : {true, false}) {
      run_ranks(GetParam(), 2, [&](int rank, auto group) {
        SCOPED_TRACE(concat(through_ddp ? "load(ddp)" : "load(module)", low ? ", in a lower precision" : ""));
        auto made = options(group);
        if (low) made.mixed_precision = MixedPrecision{.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat};
        std::stringstream file;
        torch::save(Mlp(3, 8, 77), file);
        Mlp net;
        DistributedDataParallel ddp(net, made);
        torch::optim::SGD optimizer(ddp.parameters(), 0.1);
        const auto step = [&](int number) {
          optimizer.zero_grad();
          ddp(random_tensor({2, 8}, 50 * rank + number)).square().sum().backward();
          optimizer.step();
        };
        for (int number = 0; number < 3; ++number) step(number);
        if (through_ddp) {
          torch::load(ddp, file);
        } else {
          torch::load(net, file);
        }
        EXPECT_TRUE(at::equal(net->linears[1]->weight, Mlp(3, 8, 77)->linears[1]->weight));
        for (int number = 3; number < 6; ++number) step(number);
        Mlp alone(3, 8, 77);
        torch::optim::SGD reference(alone->parameters(), 0.1);
        for (int number = 3; number < 6 && !low; ++number) {
          reference.zero_grad();
          for (int other = 0; other < 2; ++other)
            (alone->forward(random_tensor({2, 8}, 50 * other + number)).square().sum() / 2).backward();
          reference.step();
        }
        if (!low) expect_close(net->parameters(), alone->parameters());
        EXPECT_EQ(net->linears[1]->weight.scalar_type(), at::kFloat);
        const at::Tensor flat = torch::nn::utils::parameters_to_vector(net->parameters()).detach();
        std::vector<at::Tensor> all{at::empty_like(flat), at::empty_like(flat)};
        group->all_gather({all}, {flat})->wait();
        EXPECT_TRUE(at::equal(all[0], all[1]));
      });
    }
  }
}

struct HoldingImpl : torch::nn::Module {
  HoldingImpl() {
    inner = register_module("inner", Mlp(1, 8));
    norm = register_module("norm", torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(8).affine(false)));
  }
  at::Tensor forward(const at::Tensor& x) { return norm(inner->forward(x)); }
  Mlp inner{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(Holding);

TEST_P(DdpParameters, AParameterThatWasReplacedIsRefused) {
  run_ranks(GetParam(), 2, [&](int rank, auto group) {
    Holding net;
    DistributedDataParallel ddp(net, options(group));
    ddp(random_tensor({4, 8}, rank)).sum().backward();
    net->inner = net->replace_module("inner", Mlp(1, 8, 9));
    const std::string error = error_of([&] { ddp(random_tensor({4, 8}, rank)); });
    EXPECT_NE(error.find("Parameter 'inner.layer0.weight' of the module"), std::string::npos) << error;
  });
}

TEST_P(DdpParameters, BuffersThatTookTheirPlaceTravel) {
  run_ranks(GetParam(), 2, [&](int rank, auto group) {
    Holding net;
    DistributedDataParallel ddp(net, options(group));
    ddp(random_tensor({4, 8}, rank)).sum().backward();
    net->norm = net->replace_module("norm", torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(8).affine(false)));
    net->norm->running_mean.fill_(5.0 + rank);
    net->norm->eval();  // keeps its statistics as they are
    ddp(random_tensor({4, 8}, rank)).sum().backward();
    EXPECT_TRUE(at::equal(net->norm->running_mean, at::full({8}, 5.0)));
  });
}

INSTANTIATE_TEST_SUITE_P(Groups, DdpParameters, ::testing::ValuesIn(all_setups()), name_of_setup);

}  // namespace
}  // namespace gradwire::testing::ddp_parameters_test::plain

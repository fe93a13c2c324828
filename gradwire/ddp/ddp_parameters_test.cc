// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Parameters that are not plain: sparse gradients, complex numbers, frozen for a while, ignored, delayed; and what a
// checkpoint calls them.
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/utils/convert_parameters.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <array>
#include <sstream>

#include "gradwire/base/error.h"
#include "gradwire/ddp/ddp_test_support.h"

namespace gradwire::testing::ddp_parameters_test {
namespace {

constexpr int kRows = 9;
constexpr int kColumns = 4;

class DdpParameters : public ::testing::TestWithParam<Setup> {
 protected:
  static DdpOptions options(const std::shared_ptr<ProcessGroup>& group) {
    DdpOptions made = options_for(GetParam(), group);
    made.bucket_cap_mb = 0.0001;  // a bucket a tensor
    return made;
  }
  // For an Mlp.
  static DdpOptions with_one_delayed(const std::shared_ptr<ProcessGroup>& group) {
    DdpOptions made = options(group);
    made.delay_all_reduce_named_params = {"layer2.weight"};
    made.param_to_hook_all_reduce = "layer1.weight";
    return made;
  }
};

// Two tables of sparse gradients around a dense layer; the bag is used when asked for.
struct TablesImpl : torch::nn::Module {
  TablesImpl() {
    table = register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(kRows, kColumns).sparse(true)));
    linear = register_module("linear", torch::nn::Linear(kColumns, kColumns));
    bag = register_module(
        "bag", torch::nn::EmbeddingBag(torch::nn::EmbeddingBagOptions(kRows, kColumns).sparse(true).mode(torch::kSum)));
    fill(*this, 2);
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& rows, bool with_bag) {
    at::Tensor h = torch::tanh(linear(table(rows))).sum(0);
    if (with_bag) h = h + bag(rows.view({1, -1})).square().sum(0);
    return h.square().sum();
  }
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear linear{nullptr};
  torch::nn::EmbeddingBag bag{nullptr};
};
TORCH_MODULE(Tables);

// Different rows and numbers of rows on each rank, some twice.
at::Tensor rows_of(int rank, int step) {
  std::vector<std::int64_t> rows;
  for (int i = 0; i <= rank + step % 2; ++i) rows.push_back((3 * rank + step + 2 * i * i) % kRows);
  rows.push_back(rows.front());
  return torch::tensor(rows);
}

using UsesBag = std::function<bool(int rank, int step)>;

std::vector<at::Tensor> dense(std::vector<at::Tensor> gradients) {
  for (at::Tensor& gradient : gradients) {
    if (gradient.defined() && gradient.is_sparse()) gradient = gradient.to_dense();
  }
  return gradients;
}

// Averages of the ranks' gradients; undefined where no rank has one.
std::vector<at::Tensor> table_average(int world, const std::vector<int>& steps, const UsesBag& bag) {
  Tables net;
  for (const int step : steps) {
    for (int rank = 0; rank < world; ++rank) (net->forward(rows_of(rank, step), bag(rank, step)) / world).backward();
  }
  return dense(gradients_of(*net));
}

void train_tables(const Setup& setup, int world, const UsesBag& bag, const std::function<void(DdpOptions&)>& change,
                  bool hook = false) {
  std::vector<std::vector<at::Tensor>> last(static_cast<std::size_t>(world)), expected;
  for (int step = 0; step < 3; ++step) expected.push_back(table_average(world, {step}, bag));
  expected.push_back(table_average(world, {4, 5}, bag));
  run_ranks(setup, world, [&](int rank, auto group) {
    auto options = options_for(setup, group);
    options.bucket_cap_mb = 0.0001;
    change(options);
    Tables net;
    DistributedDataParallel ddp(net, options);
    int lasts = 0;
    if (hook) {
      ddp.register_comm_hook([&](GradBucket& bucket) {
        lasts += bucket.is_last() ? 1 : 0;
        for (const auto& name : bucket.parameter_names()) EXPECT_EQ(name.substr(0, 6), "linear");
        bucket.group().all_reduce({bucket.buffer().div_(bucket.divisor())})->wait();
        return bucket.buffer();
      });
    }
    torch::optim::SGD optimizer(ddp.parameters(), 0.0);
    for (int step = 0; step < 3; ++step) {
      SCOPED_TRACE(concat("rank ", rank, " of ", world, ", step ", step));
      optimizer.zero_grad();
      ddp(rows_of(rank, step), bag(rank, step)).backward();
      EXPECT_TRUE(net->table->weight.grad().is_sparse());
      expect_close(dense(gradients_of(*net)), expected[static_cast<std::size_t>(step)], 1e-12);
      optimizer.step();
    }
    if (hook) {
      EXPECT_EQ(lasts, 3) << "one bucket of each iteration is the last that a hook gets";
    }
    optimizer.zero_grad();
    {
      const auto local = ddp.no_sync();
      ddp(rows_of(rank, 4), bag(rank, 4)).backward();
    }
    ddp(rows_of(rank, 5), bag(rank, 5)).backward();
    expect_close(dense(gradients_of(*net)), expected.back(), 1e-12);
    last[static_cast<std::size_t>(rank)] = dense(gradients_of(*net));
  });
  for (const auto& rank : last)
    for (std::size_t i = 0; i < rank.size(); ++i) EXPECT_TRUE(at::equal(rank[i], last[0][i])) << "parameter " << i;
}

TEST_P(DdpParameters, SparseGradientsAreAveraged) {
  const auto always = [](int, int) { return true; };
  train_tables(GetParam(), 1, always, [](DdpOptions&) {});
  train_tables(
      GetParam(), 2, always, [](DdpOptions&) {}, /*hook=*/true);
  train_tables(GetParam(), 2, always, [](DdpOptions& o) { o.static_graph = true; });
  train_tables(
      GetParam(), 3, [](int rank, int step) { return step % 2 == 1 && rank != 1; },
      [](DdpOptions& o) { o.find_unused_parameters = true; });
}

TEST_P(DdpParameters, SparseGradientsInAJoin) {
  run_ranks(GetParam(), 2, [&](int rank, auto group) {
    Tables net;
    DistributedDataParallel ddp(net, options(group));
    {
      Join join = ddp.join({.divide_by_initial_world_size = false});
      for (int step = 0; step < 1 + rank; ++step) {
        ddp.zero_grad();
        ddp(rows_of(rank, step), true).backward();
      }
    }
    Tables alone;
    alone->forward(rows_of(1, 1), true).backward();
    expect_close(dense(gradients_of(*net)), dense(gradients_of(*alone)), 1e-12);
  });
}

TEST_P(DdpParameters, ADenseGradientOfASparseTableIsRefused) {
  const std::string error = error_of([&] {
    run_ranks(GetParam(), 2, [&](int rank, auto group) {
      Tables net;
      DistributedDataParallel ddp(net, options(group));
      (ddp(rows_of(rank, 0), true) + net->table->weight.sum()).backward();
    });
  });
  EXPECT_NE(error.find("'table.weight'"), std::string::npos) << error;
}

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

// The average of the gradients that an Mlp in bfloat16 gets on each of two ranks from `loss`, summed in float32.
std::vector<at::Tensor> low_average(const std::function<at::Tensor(Mlp&, int rank)>& loss) {
  std::vector<at::Tensor> averages;
  for (int rank = 0; rank < 2; ++rank) {
    Mlp alone;
    alone->to(at::kBFloat16);
    loss(alone, rank).backward();
    const auto gradients = gradients_of(*alone);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (rank == 0) averages.emplace_back();
      if (!gradients[i].defined()) continue;
      const at::Tensor mine = gradients[i].to(at::kFloat) / 2;
      averages[i] = averages[i].defined() ? averages[i] + mine : mine;
    }
  }
  return averages;
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

TEST_P(DdpParameters, ASparseParameterCannotBeDelayed) {
  run_ranks(GetParam(), 1, [&](int, auto group) {
    auto made = options(group);
    made.delay_all_reduce_named_params = {"table.weight"};
    made.param_to_hook_all_reduce = "linear.weight";
    const std::string error = error_of([&] { DistributedDataParallel ddp(Tables(), made); });
    EXPECT_NE(error.find("'table.weight' of delay_all_reduce_named_params makes sparse gradients"), std::string::npos)
        << error;
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
}  // namespace gradwire::testing::ddp_parameters_test

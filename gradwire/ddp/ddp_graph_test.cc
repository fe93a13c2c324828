// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Graphs in which not every parameter gets one gradient: find_unused_parameters and static_graph.
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <atomic>

#include "gradwire/base/error.h"
#include "gradwire/ddp/ddp_test_support.h"
#include "gradwire/ddp/parameter_use_internal.h"

namespace gradwire::testing::ddp_graph_test {
namespace {

constexpr int kWidth = 6;
constexpr int kBranches = 4;

// Uses the branches that the caller names.
struct BranchesImpl : torch::nn::Module {
  BranchesImpl() {
    for (int i = 0; i < kBranches; ++i) {
      branches.push_back(register_module(concat("branch", i), torch::nn::Linear(kWidth, kWidth)));
    }
    fill(*this, 5);
  }
  at::Tensor forward(const at::Tensor& x, const std::vector<int>& used) {
    at::Tensor sum = at::zeros_like(x);
    for (const int i : used) sum = sum + torch::tanh(branches[static_cast<std::size_t>(i)](x)) * (i + 1);
    return sum;
  }
  std::vector<torch::nn::Linear> branches;
};
TORCH_MODULE(Branches);

at::Tensor input_of(int rank, int step) { return random_tensor({3, kWidth}, 1000 * (rank + 1) + step); }

using Use = std::function<std::vector<int>(int rank, int step)>;

// The branches a rank uses: some on no rank, some on one, changing with the step.
std::vector<int> changing(int rank, int step) {
  std::vector<int> used{step % kBranches};
  if (rank == 0) used.push_back((step + 1) % kBranches);
  return used;
}

// The gradients that `size` ranks must hold after each step, accumulated when `zero` is false.
class Oracle {
 public:
  Oracle(int size, Use use, bool zero) : size_(size), use_(std::move(use)), zero_(zero) {}

  // Of this rank's .grad before the step: the average over the ranks, where a rank that did not use a parameter takes
  // part with what it holds; undefined or untouched where no rank used it.
  std::vector<at::Tensor> step(int number) {
    std::vector<at::Tensor> sum;
    for (int rank = 0; rank < size_; ++rank) {
      Branches local;
      local->forward(input_of(rank, number), use_(rank, number)).square().sum().backward();
      const std::vector<at::Tensor> mine = gradients_of(*local);
      sum.resize(mine.size());
      for (std::size_t i = 0; i < mine.size(); ++i) {
        if (!mine[i].defined()) continue;
        sum[i] = sum[i].defined() ? sum[i] + mine[i] : mine[i];
      }
    }
    if (held_.empty() || zero_) held_.assign(sum.size(), at::Tensor());
    for (std::size_t i = 0; i < sum.size(); ++i) {
      if (!sum[i].defined()) continue;
      held_[i] = held_[i].defined() ? held_[i] + sum[i] / size_ : sum[i] / size_;
    }
    return held_;
  }

 private:
  int size_;
  Use use_;
  bool zero_;
  std::vector<at::Tensor> held_;
};

class DdpGraph : public ::testing::TestWithParam<Setup> {
 protected:
  static DdpOptions options(const std::shared_ptr<ProcessGroup>& group) {
    DdpOptions made = options_for(GetParam(), group);
    made.bucket_cap_mb = 0.0001;  // a bucket a tensor
    return made;
  }

  static void train(const Use& use, bool zero, int size, const std::function<void(DdpOptions&)>& change) {
    run_ranks(GetParam(), size, [&](int rank, auto group) {
      DdpOptions made = options(group);
      change(made);
      Branches net;
      DistributedDataParallel ddp(net, made);
      Oracle oracle(size, use, zero);
      for (int step = 0; step < 6; ++step) {
        SCOPED_TRACE(concat("rank ", rank, " of ", size, ", step ", step));
        if (zero) ddp.zero_grad();
        ddp(input_of(rank, step), use(rank, step)).square().sum().backward();
        expect_close(gradients_of(*net), oracle.step(step));
      }
    });
  }
};

// Alone as with other ranks: what a local pass used, and nothing holds any more, counts as used with zeros.
TEST_P(DdpGraph, AUsedParameterWhoseGradientWasRemovedGetsZeros) {
  for (const int size : {1, 2}) {
    for (const bool fixed : {false, true}) {
      run_ranks(GetParam(), size, [&](int rank, auto group) {
        SCOPED_TRACE(concat("rank ", rank, " of ", size, fixed ? ", static graph" : ""));
        DdpOptions made = options(group);
        made.find_unused_parameters = true;
        made.static_graph = fixed;
        Branches net;
        DistributedDataParallel ddp(net, made);
        {
          const auto local = ddp.no_sync();
          ddp(input_of(rank, 0), std::vector<int>{0, 1}).sum().backward();
        }
        const at::Tensor& removed = net->branches[1]->weight;
        removed.mutable_grad().reset();
        ddp(input_of(rank, 1), std::vector<int>{0}).sum().backward();
        ASSERT_TRUE(removed.grad().defined());
        EXPECT_TRUE(at::equal(removed.grad(), at::zeros_like(removed)));
        EXPECT_FALSE(net->branches[2]->weight.grad().defined()) << "no pass used it";
        EXPECT_NE(net->branches[1]->bias.grad().abs().sum().item<double>(), 0) << "it was not removed";
        ddp.zero_grad();
        ddp(input_of(rank, 2), std::vector<int>{0}).sum().backward();
        EXPECT_EQ(removed.grad().defined(), fixed) << "a static graph keeps to its first iteration";
      });
    }
  }
}

TEST_P(DdpGraph, ParametersThatSomeRanksOrNoneUseAreFoundInEachIteration) {
  for (const int size : {1, 2, 3}) {
    for (const bool zero : {true, false}) {
      train(changing, zero, size, [](DdpOptions& o) { o.find_unused_parameters = true; });
    }
  }
}

TEST_P(DdpGraph, AHookSeesAllBucketsInOrderWhateverIsUsed) {
  run_ranks(GetParam(), 2, [&](int rank, auto group) {
    DdpOptions made = options(group);
    made.find_unused_parameters = true;
    DistributedDataParallel ddp(Branches(), made);
    std::vector<std::size_t> seen;
    ddp.register_comm_hook([&](GradBucket& bucket) {
      seen.push_back(bucket.index());
      return bucket.buffer();
    });
    ddp(input_of(rank, 0), changing(rank, 0)).sum().backward();
    EXPECT_EQ(seen.size(), ddp.core().bucket_plan().size());
    for (std::size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], i);
  });
}

// Gradients of parameters that no rank uses keep their bits, though N times 1/N does not.
TEST_P(DdpGraph, WhatNobodyUsesStaysUntouched) {
  run_ranks(GetParam(), 3, [&](int rank, auto group) {
    DdpOptions made = options(group);
    made.find_unused_parameters = true;
    Branches net;
    DistributedDataParallel ddp(net, made);
    at::Tensor& grad = net->branches[3]->weight.mutable_grad();
    grad = random_tensor({kWidth, kWidth}, 70 + rank);
    const at::Tensor before = grad.clone();
    for (int step = 0; step < 3; ++step) ddp(input_of(rank, step), std::vector<int>{0, 1}).sum().backward();
    EXPECT_TRUE(at::equal(net->branches[3]->weight.grad(), before));
    EXPECT_FALSE(net->branches[2]->weight.grad().defined());
  });
}

TEST_P(DdpGraph, WhatWasUsedWithoutSyncIsAveragedByTheNextSynchronizedPass) {
  run_ranks(GetParam(), 2, [&](int rank, auto group) {
    DdpOptions made = options(group);
    made.find_unused_parameters = true;
    Branches net;
    DistributedDataParallel ddp(net, made);
    {
      const auto guard = ddp.no_sync();
      ddp(input_of(rank, 0), std::vector<int>{2}).sum().backward();
    }
    ddp(input_of(rank, 1), std::vector<int>{0}).sum().backward();
    at::Tensor wanted = at::zeros({kWidth, kWidth});
    for (int other = 0; other < 2; ++other) {
      Branches local;
      local->forward(input_of(other, 0), {2}).sum().backward();
      wanted += local->branches[2]->weight.grad() / 2;
    }
    expect_close({net->branches[2]->weight.grad()}, {wanted});
    EXPECT_FALSE(net->branches[1]->weight.grad().defined());
  });
}

TEST_P(DdpGraph, WithoutTheOptionTheErrorNamesTheParametersAndTheOption) {
  run_ranks(GetParam(), 2, [&](int rank, auto group) {
    DistributedDataParallel ddp(Branches(), options(group));
    ddp(input_of(rank, 0), std::vector<int>{0, 1, 2}).sum().backward();
    const std::string error = error_of([&] { ddp(input_of(rank, 1), std::vector<int>{0}); });
    EXPECT_NE(error.find("'branch3.weight'"), std::string::npos) << error;
    EXPECT_NE(error.find("find_unused_parameters"), std::string::npos) << error;
  });
}

TEST_P(DdpGraph, AFixedGraphMayLeaveParametersOut) {
  const Use use = [](int, int) { return std::vector<int>{2, 0}; };
  for (const int size : {1, 2, 3}) {
    for (const bool zero : {true, false}) train(use, zero, size, [](DdpOptions& o) { o.static_graph = true; });
  }
}

TEST_P(DdpGraph, AFixedGraphMayDifferBetweenRanks) {
  const Use use = [](int rank, int) { return rank == 0 ? std::vector<int>{0, 3} : std::vector<int>{1, 3}; };
  train(use, true, 2, [](DdpOptions& o) { o.static_graph = true; });
}

// A segment whose activations are computed again in backward, by a backward pass inside the backward pass.
struct Checkpoint : torch::autograd::Function<Checkpoint> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            torch::nn::LinearImpl* layer) {
    context->save_for_backward({x});
    context->saved_data["layer"] = reinterpret_cast<std::int64_t>(layer);
    return torch::tanh(layer->forward(x));
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    auto* layer = reinterpret_cast<torch::nn::LinearImpl*>(context->saved_data["layer"].toInt());
    const at::AutoGradMode with_gradients(true);
    const at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    torch::autograd::backward({torch::tanh(layer->forward(x))}, {gradients[0]});
    return {x.grad(), at::Tensor()};
  }
};

struct CheckpointedImpl : torch::nn::Module {
  explicit CheckpointedImpl(bool checkpoints) : checkpointed(checkpoints) {
    first = register_module("first", torch::nn::Linear(kWidth, kWidth));
    shared = register_module("shared", torch::nn::Linear(kWidth, kWidth));
    fill(*this, 6);
  }
  at::Tensor segment(const at::Tensor& x) {
    return checkpointed ? Checkpoint::apply(x, shared.get()) : torch::tanh(shared(x));
  }
  // The shared layer is in two segments.
  at::Tensor forward(const at::Tensor& x) { return segment(segment(first(x))); }
  bool checkpointed;
  torch::nn::Linear first{nullptr}, shared{nullptr};
};
TORCH_MODULE(Checkpointed);

TEST_P(DdpGraph, AFixedGraphMayBringAParameterSeveralGradients) {
  run_ranks(GetParam(), 2, [&](int rank, auto group) {
    DdpOptions made = options(group);
    made.static_graph = true;
    Checkpointed net(true);
    DistributedDataParallel ddp(net, made);
    for (int step = 0; step < 4; ++step) {
      SCOPED_TRACE(concat("step ", step));
      ddp.zero_grad();
      ddp(input_of(rank, step)).square().sum().backward();
      std::vector<at::Tensor> wanted;
      for (int other = 0; other < 2; ++other) {
        Checkpointed local(false);
        local(input_of(other, step)).square().sum().backward();
        const std::vector<at::Tensor> mine = gradients_of(*local);
        for (std::size_t i = 0; i < mine.size(); ++i) {
          if (other == 0) wanted.push_back(mine[i] / 2);
          if (other == 1) wanted[i] += mine[i] / 2;
        }
      }
      expect_close(gradients_of(*net), wanted);
    }
  });
}

struct ChainImpl : torch::nn::Module {
  explicit ChainImpl(bool checkpoints) : checkpointed(checkpoints) {
    for (int i = 0; i < 3; ++i)
      layers.push_back(register_module(concat("layer", i), torch::nn::Linear(kWidth, kWidth)));
    fill(*this, 7);
  }
  at::Tensor forward(at::Tensor x) {
    x = torch::tanh(layers[0](x));
    for (const std::size_t i : {1, 2})
      x = checkpointed ? Checkpoint::apply(x, layers[i].get()) : torch::tanh(layers[i](x));
    return x;
  }
  bool checkpointed;
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(Chain);

// Each parameter in one segment: no option is needed, in a lower precision either.
TEST_P(DdpGraph, CheckpointedSegments) {
  for (const bool low : {false, true}) {
    run_ranks(GetParam(), 2, [&](int rank, auto group) {
      DdpOptions made = options(group);
      if (low) made.mixed_precision = MixedPrecision{.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat};
      Chain net(true);
      DistributedDataParallel ddp(net, made);
      for (int step = 0; step < 3; ++step) {
        ddp.zero_grad();
        if (step == 2) {
          const auto local = ddp.no_sync();
          ddp(input_of(rank, 9)).square().sum().backward();
        }
        ddp(input_of(rank, step)).square().sum().backward();
        std::vector<at::Tensor> wanted;
        for (const int number : step == 2 ? std::vector<int>{9, 2} : std::vector<int>{step}) {
          for (int other = 0; other < 2; ++other) {
            Chain local(false);
            if (low) local->to(at::kBFloat16);
            local->forward(input_of(other, number).to(low ? at::kBFloat16 : at::kFloat)).square().sum().backward();
            const auto gradients = gradients_of(*local);
            wanted.resize(gradients.size());
            for (std::size_t i = 0; i < gradients.size(); ++i) {
              const at::Tensor share = gradients[i].to(at::kFloat) / 2;
              wanted[i] = wanted[i].defined() ? wanted[i] + share : share;
            }
          }
        }
        expect_close(gradients_of(*net), wanted);
      }
    });
  }
}

TEST_P(DdpGraph, SeveralGradientsWithoutAFixedGraphAreAnErrorThatNamesTheOption) {
  std::atomic<int> named{0};
  try {
    run_ranks(GetParam(), 2, [&](int rank, auto group) {
      DistributedDataParallel ddp(Checkpointed(true), options(group));
      const std::string error = error_of([&] { ddp(input_of(rank, 0)).sum().backward(); });
      if (error.find("static_graph") != std::string::npos) ++named;
      throw InvalidArgument(error);
    });
  } catch (const Error&) {
  }
  EXPECT_GE(named.load(), 1);
}

// PyTorch allows it neither in the first iteration nor later.
TEST_P(DdpGraph, AFixedGraphMayRunTwoForwardsThenTwoBackwards) {
  run_ranks(GetParam(), 2, [&](int rank, auto group) {
    DdpOptions made = options(group);
    made.static_graph = true;
    Branches net;
    DistributedDataParallel ddp(net, made);
    const std::vector<int> used{0, 2};
    for (int step = 0; step < 4; step += 2) {
      ddp.zero_grad();
      const at::Tensor first = ddp(input_of(rank, step), used).square().sum();
      const at::Tensor second = ddp(input_of(rank, step + 1), used).square().sum();
      first.backward();
      second.backward();
      Branches local;
      for (int other = 0; other < 2; ++other) {
        for (const int at : {step, step + 1}) (local->forward(input_of(other, at), used).square().sum() / 2).backward();
      }
      expect_close(gradients_of(*net), gradients_of(*local));
    }
    EXPECT_EQ(ddp.core().iterations(), 4U);
  });
}

TEST_P(DdpGraph, AParameterThatBecameUnusedInAFixedGraphIsNamed) {
  std::atomic<int> named{0};
  try {
    run_ranks(GetParam(), 2, [&](int rank, auto group) {
      DdpOptions made = options(group);
      made.static_graph = true;
      DistributedDataParallel ddp(Branches(), made);
      const auto step = [&](int number, const std::vector<int>& used) {
        ddp(input_of(rank, number), used).sum().backward();
      };
      for (int number = 0; number < 2; ++number) step(number, {0, 1});
      const std::string error = error_of([&] {
        step(2, {0});
        step(3, {0});
      });
      if (error.find("'branch1.weight'") != std::string::npos) ++named;
      EXPECT_EQ(error.find("'branch0."), std::string::npos) << error;
      throw InvalidArgument(error);
    });
  } catch (const Error&) {
  }
  EXPECT_EQ(named.load(), 2);
}

std::vector<at::Tensor> average_of_ranks(int size, const std::function<at::Tensor(Branches&, int rank)>& loss) {
  Branches local;
  for (int rank = 0; rank < size; ++rank) (loss(local, rank) / size).backward();
  return gradients_of(*local);
}

// A forward that no backward pass follows (an evaluation with gradients on, say), on all ranks or on one of them.
TEST_P(DdpGraph, AForwardThatIsThrownAwayLeavesNothingBehind) {
  for (const bool on_all : {true, false}) {
    run_ranks(GetParam(), 2, [&](int rank, auto group) {
      DdpOptions made = options(group);
      made.find_unused_parameters = true;
      made.broadcast_buffers = false;
      Branches net;
      DistributedDataParallel ddp(net, made);
      for (int step = 0; step < 3; ++step) {
        SCOPED_TRACE(concat("rank ", rank, ", step ", step));
        ddp.zero_grad();
        if (on_all || rank == 0) (void)ddp(input_of(rank, 7), std::vector<int>{0, 3});
        ddp(input_of(rank, step), std::vector<int>{1}).square().sum().backward();
        expect_close(gradients_of(*net), average_of_ranks(2, [&](Branches& each, int of) {
                       return each->forward(input_of(of, step), {1}).square().sum();
                     }));
      }
      EXPECT_EQ(ddp.core().iterations(), 3U);
    });
  }
}

TEST_P(DdpGraph, TwoForwardsThenTwoBackwardsOfDifferentParameters) {
  for (const bool swapped : {false, true}) {
    run_ranks(GetParam(), 2, [&](int rank, auto group) {
      DdpOptions made = options(group);
      made.find_unused_parameters = true;
      Branches net;
      DistributedDataParallel ddp(net, made);
      for (int step = 0; step < 4; step += 2) {
        ddp.zero_grad();
        const at::Tensor first = ddp(input_of(rank, step), std::vector<int>{0, 2}).square().sum();
        const at::Tensor second = ddp(input_of(rank, step + 1), std::vector<int>{2, 3}).square().sum();
        (swapped ? second : first).backward();
        (swapped ? first : second).backward();
        expect_close(gradients_of(*net), average_of_ranks(2, [&](Branches& each, int of) {
                       return each->forward(input_of(of, step), {0, 2}).square().sum() +
                              each->forward(input_of(of, step + 1), {2, 3}).square().sum();
                     }));
      }
      EXPECT_EQ(ddp.core().iterations(), 4U);
    });
  }
}

// Two outputs, of which the loss may use one, another on each rank.
struct TwoHeadsImpl : torch::nn::Module {
  TwoHeadsImpl() : branches(register_module("branches", Branches())) {}
  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& x) {
    return {branches->forward(x, {0, 1}), branches->forward(x, {1, 2})};
  }
  Branches branches;
};
TORCH_MODULE(TwoHeads);

TEST_P(DdpGraph, AnOutputThatTheLossDoesNotUse) {
  for (const bool alike : {true, false}) {
    run_ranks(GetParam(), 2, [&](int rank, auto group) {
      DdpOptions made = options(group);
      made.find_unused_parameters = true;
      TwoHeads net;
      DistributedDataParallel ddp(net, made);
      const auto loss = [&](const std::pair<at::Tensor, at::Tensor>& outputs, int of, int step) {
        return (alike || (of + step) % 2 == 0 ? outputs.first : outputs.second).square().sum();
      };
      for (int step = 0; step < 3; ++step) {
        SCOPED_TRACE(concat("rank ", rank, ", step ", step));
        ddp.zero_grad();
        loss(ddp(input_of(rank, step)), rank, step).backward();
        TwoHeads alone;
        for (int of = 0; of < 2; ++of) (loss(alone->forward(input_of(of, step)), of, step) / 2).backward();
        expect_close(gradients_of(*net), gradients_of(*alone));
      }
    });
  }
}

// torch::autograd::grad() of an input comes through the outputs and brings no gradients: a penalty on it, say.
TEST_P(DdpGraph, APassThatBringsNoGradientsIsNotSynchronized) {
  run_ranks(GetParam(), 2, [&](int rank, auto group) {
    DdpOptions made = options(group);
    made.find_unused_parameters = true;
    Branches net;
    DistributedDataParallel ddp(net, made);
    const at::Tensor x = input_of(rank, 0).requires_grad_();
    const at::Tensor loss = ddp(x, std::vector<int>{0, 1}).square().sum();
    const auto slope = torch::autograd::grad({loss}, {x}, {}, /*retain_graph=*/true);
    EXPECT_TRUE(slope[0].defined());
    EXPECT_EQ(ddp.core().iterations(), 0U);
    loss.backward();
    EXPECT_EQ(ddp.core().iterations(), 1U);
    expect_close(gradients_of(*net), average_of_ranks(2, [&](Branches& each, int of) {
                   return each->forward(input_of(of, 0), {0, 1}).square().sum();
                 }));
  });
}

// What a forward within no_sync() began is local, wherever its backward runs; what one outside began is not.
TEST_P(DdpGraph, NoSyncIsAboutTheForward) {
  run_ranks(GetParam(), 2, [&](int rank, auto group) {
    Branches net;
    DistributedDataParallel ddp(net, options(group));
    const std::vector<int> all{0, 1, 2, 3};
    const auto loss = [&](int step) { return ddp(input_of(rank, step), all).square().sum(); };
    const auto local = [&](int other, int step, int over) {
      Branches alone;
      (alone->forward(input_of(other, step), all).square().sum() / over).backward();
      return gradients_of(*alone);
    };
    at::Tensor begun;
    {
      const auto outer = ddp.no_sync();
      { const auto inner = ddp.no_sync(); }
      begun = loss(0);  // still within the outer one
    }
    begun.backward();
    expect_close(gradients_of(*net), local(rank, 0, 1));
    EXPECT_EQ(ddp.core().iterations(), 0U);
    ddp.zero_grad();
    begun = loss(1);
    {
      const auto guard = ddp.no_sync();
      begun.backward();
    }
    auto expected = local(0, 1, 2);
    const auto second = local(1, 1, 2);
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += second[i];
    expect_close(gradients_of(*net), expected);
    EXPECT_EQ(ddp.core().iterations(), 1U);
  });
}

TEST_P(DdpGraph, OptionsThatDifferBetweenRanksAreRefused) {
  std::atomic<int> refused{0};
  try {
    run_ranks(GetParam(), 2, [&](int rank, auto group) {
      DdpOptions made = options(group);
      made.static_graph = rank == 0;
      try {
        DistributedDataParallel ddp(Branches(), made);
      } catch (const MismatchError& error) {
        EXPECT_NE(std::string(error.what()).find("static_graph"), std::string::npos) << error.what();
        ++refused;
        throw;
      }
    });
  } catch (const MismatchError&) {
  }
  EXPECT_EQ(refused.load(), 2);
}

INSTANTIATE_TEST_SUITE_P(Setups, DdpGraph, ::testing::ValuesIn(all_setups()), name_of_setup);

TEST(ParameterUse, OrdersParametersByTheirLastGradientAndThoseWithoutOneLast) {
  internal::ParameterUse use(internal::GraphKind::fixed, 4);
  for (const std::size_t parameter : {2U, 0U, 2U, 3U}) EXPECT_FALSE(use.complete(parameter));
  EXPECT_EQ(use.order_of_completion(), (std::vector<std::size_t>{0, 2, 3, 1}));
  use.end_iteration();
  EXPECT_EQ(use.absent(), std::vector<std::size_t>{1});
  EXPECT_FALSE(use.complete(2));
  EXPECT_TRUE(use.complete(2));
  EXPECT_TRUE(use.complete(2)) << "one too many must be noticed";
}

}  // namespace
}  // namespace gradwire::testing::ddp_graph_test

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// DistributedDataParallel against a model trained without it, over every kind of group.
#include <ATen/ops/from_blob.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <set>

#include "gradwire/base/log.h"
#include "gradwire/ddp/bucket_plan.h"
#include "gradwire/ddp/ddp_test_support.h"
#include "gradwire/ddp/slot_loan_internal.h"
#include "gradwire/process_group/call_group.h"

namespace gradwire::testing::ddp_test {
namespace {

constexpr int kWorld = 2;

class Ddp : public ::testing::TestWithParam<Setup> {
 protected:
  void ranks(const std::function<void(int, std::shared_ptr<ProcessGroup>)>& body, int size = kWorld) {
    run_ranks(GetParam(), size, body);
  }
  DdpOptions options(std::shared_ptr<ProcessGroup> group) const { return options_for(GetParam(), std::move(group)); }
};
INSTANTIATE_TEST_SUITE_P(All, Ddp, ::testing::ValuesIn(all_setups()), name_of_setup);

// The mean over all samples of all ranks is what one rank would compute on the whole batch.
TEST_P(Ddp, GradientsAreThoseOfTheWholeBatch) {
  const at::Tensor x = random_tensor({12, 8}, 5);
  Mlp alone;
  alone->forward(x).pow(2).mean().backward();
  const auto expected = gradients_of(*alone);
  for (const int world : {1, 2, 3}) {
    ranks(
        [&](int rank, auto group) {
          Mlp net;
          DistributedDataParallel ddp(net, options(group));
          for (int step = 0; step < 3; ++step) {
            ddp.zero_grad();
            ddp(x.chunk(world)[static_cast<std::size_t>(rank)]).pow(2).mean().backward();
            expect_close(gradients_of(*net), expected);
          }
        },
        world);
  }
}

// A module as users write it: on the stack, or a temporary, without a holder.
struct PlainNet : torch::nn::Module {
  explicit PlainNet(int seed) {
    layer = register_module("layer", torch::nn::Linear(8, 2));
    table = register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(4, 8).sparse(true)));
    // Ranks are threads here, and share torch's generator.
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : parameters()) parameter.copy_(random_tensor(parameter.sizes(), seed));
  }
  at::Tensor forward(const at::Tensor& x) { return layer(x + table(at::zeros({1}, at::TensorOptions(at::kLong)))); }
  torch::nn::Linear layer = nullptr;
  torch::nn::Embedding table = nullptr;
};

TEST_P(Ddp, TakesAModuleThatNothingHolds) {
  ranks([&](int rank, auto group) {
    PlainNet net(1 + rank);
    DistributedDataParallel ddp(net, options(group));
    EXPECT_EQ(ddp.module().get(), &net) << "refers to the user's own";
    ddp(at::full({1, 8}, rank + 1.0)).sum().backward();
    PlainNet alone(1);
    alone.forward(at::full({1, 8}, 1.5)).sum().backward();
    expect_close({net.layer->weight.grad(), net.table->weight.grad().to_dense()},
                 {alone.layer->weight.grad(), alone.table->weight.grad().to_dense()});

    DistributedDataParallel moved(PlainNet(3), options(group));
    DistributedDataParallel shared(std::make_shared<PlainNet>(3), options(group));
    const at::Tensor x = at::ones({1, 8});
    EXPECT_TRUE(moved(x).equal(shared(x)));
  });
}

TEST_P(Ddp, RanksStartFromTheValuesOfRankZero) {
  ranks([&](int rank, auto group) {
    Mlp net(3, 8, /*seed=*/100 + rank);
    DistributedDataParallel ddp(net, options(group));
    Mlp zero(3, 8, 100);
    for (std::size_t i = 0; i < zero->parameters().size(); ++i)
      EXPECT_TRUE(net->parameters()[i].equal(zero->parameters()[i]));
  });
}

// One rank with the whole batch and two with halves follow the same curve; the replicas stay equal, bit for bit.
TEST_P(Ddp, TrainingFollowsTheCurveOfOneRank) {
  constexpr int kSteps = 100;
  const auto batch = [](int step) { return random_tensor({8, 8}, 1000 + step); };
  const auto loss_of = [](const at::Tensor& y) { return (y - 0.25).pow(2).mean(); };
  std::vector<double> curve;
  {
    Mlp net;
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.2).momentum(0.5));
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      const at::Tensor loss = loss_of(net->forward(batch(step)));
      loss.backward();
      optimizer.step();
      curve.push_back(loss.item<double>());
    }
  }
  std::vector<std::vector<double>> curves(kWorld, std::vector<double>(kSteps));
  std::vector<std::vector<at::Tensor>> parameters(kWorld);
  ranks([&](int rank, auto group) {
    const auto mine = static_cast<std::size_t>(rank);
    Mlp net;
    auto made = options(group);
    made.bucket_cap_mb = 0.0005;  // several buckets after the first iteration
    DistributedDataParallel ddp(net, made);
    torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.2).momentum(0.5));
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      const at::Tensor loss = loss_of(ddp(batch(step).chunk(kWorld)[mine]));
      loss.backward();
      optimizer.step();
      curves[mine][static_cast<std::size_t>(step)] = loss.template item<double>();
    }
    EXPECT_GT(ddp.core().bucket_plan().size(), 1u);
    for (const auto& parameter : net->parameters()) parameters[mine].push_back(parameter.detach());
  });
  for (std::size_t step = 0; step < kSteps; ++step)
    EXPECT_NEAR((curves[0][step] + curves[1][step]) / 2, curve[step], 1e-4) << "step " << step;
  for (std::size_t i = 0; i < parameters[0].size(); ++i)
    EXPECT_TRUE(parameters[0][i].equal(parameters[1][i])) << "parameter " << i;
}

// What is in .grad already is part of what is reduced, so ten steps without zero_grad equal ten local ones on the whole
// batch.
TEST_P(Ddp, TenStepsWithoutZeroGrad) {
  const at::Tensor x = random_tensor({4, 8}, 6);
  Mlp alone;
  torch::optim::Adam local(alone->parameters(), torch::optim::AdamOptions(0.01));
  for (int step = 0; step < 10; ++step) {
    alone->forward(x).pow(2).mean().backward();
    local.step();
  }
  ranks([&](int rank, auto group) {
    Mlp net;
    DistributedDataParallel ddp(net, options(group));
    torch::optim::Adam optimizer(ddp.parameters(), torch::optim::AdamOptions(0.01));
    for (int step = 0; step < 10; ++step) {
      ddp(x.chunk(kWorld)[static_cast<std::size_t>(rank)]).pow(2).mean().backward();
      optimizer.step();
    }
    for (std::size_t i = 0; i < net->parameters().size(); ++i) {
      EXPECT_TRUE(at::allclose(net->parameters()[i], alone->parameters()[i], 1e-4, 1e-5)) << "parameter " << i;
    }
  });
}

TEST_P(Ddp, ZeroGradBothWaysAndAReplacedGradAreNoticed) {
  const at::Tensor x = random_tensor({4, 8}, 7);
  Mlp alone;
  alone->forward(x).pow(2).mean().backward();
  const auto expected = gradients_of(*alone);
  ranks([&](int rank, auto group) {
    Mlp net;
    DistributedDataParallel ddp(net, options(group));
    torch::optim::SGD optimizer(ddp.parameters(), 0.1);
    for (int step = 0; step < 8; ++step) {
      switch (step % 4) {
        case 0:
          optimizer.zero_grad(/*set_to_none=*/true);
          break;
        case 1:
          optimizer.zero_grad(/*set_to_none=*/false);
          break;
        case 2:
          net->zero_grad(false);
          break;
        case 3:
          for (auto& parameter : net->parameters()) parameter.mutable_grad() = at::zeros_like(parameter);
          break;
      }
      ddp(x.chunk(kWorld)[static_cast<std::size_t>(rank)]).pow(2).mean().backward();
      expect_close(gradients_of(*net), expected);
    }
  });
}

TEST_P(Ddp, NoSyncAccumulatesLocallyAndTheNextPassReducesTheSum) {
  const at::Tensor x = random_tensor({12, 8}, 8);
  Mlp alone;
  for (const auto& part : x.chunk(3)) alone->forward(part).pow(2).mean().backward();
  const auto expected = gradients_of(*alone);
  ranks([&](int rank, auto group) {
    Mlp net;
    DistributedDataParallel ddp(net, options(group));
    for (int step = 0; step < 3; ++step) {
      ddp.zero_grad();
      const auto loss_on = [&](const at::Tensor& part) {
        return ddp(part.chunk(kWorld)[static_cast<std::size_t>(rank)]).pow(2).mean();
      };
      {
        const auto guard = ddp.no_sync();
        loss_on(x.chunk(3)[0]).backward();
        loss_on(x.chunk(3)[1]).backward();
        // Nothing was averaged: these are this rank's own.
        Mlp mine;
        for (int i = 0; i < 2; ++i)
          mine->forward(x.chunk(3)[static_cast<std::size_t>(i)].chunk(kWorld)[static_cast<std::size_t>(rank)])
              .pow(2)
              .mean()
              .backward();
        expect_close(gradients_of(*net), gradients_of(*mine));
        EXPECT_EQ(ddp.core().iterations(), static_cast<std::uint32_t>(step));
      }
      loss_on(x.chunk(3)[2]).backward();
      expect_close(gradients_of(*net), expected);
    }
  });
}

TEST_P(Ddp, BackwardThroughTheInnerModuleIsLocal) {
  ranks([&](int rank, auto group) {
    Mlp net;
    DistributedDataParallel ddp(net, options(group));
    const at::Tensor x = random_tensor({2, 8}, rank);
    ddp(x).sum().backward();
    net->zero_grad();
    net->forward(x).sum().backward();
    Mlp mine;
    mine->forward(x).sum().backward();
    expect_close(gradients_of(*net), gradients_of(*mine));
    EXPECT_EQ(ddp.core().iterations(), 1u);
  });
}

// Both passes are synchronized, where PyTorch leaves the second one local without a word.
TEST_P(Ddp, TwoForwardsThenTwoBackwardsAreBothReduced) {
  const at::Tensor a = random_tensor({4, 8}, 9);
  const at::Tensor b = random_tensor({4, 8}, 10);
  Mlp alone;
  alone->forward(a).pow(2).mean().backward();
  alone->forward(b).pow(2).mean().backward();
  ranks([&](int rank, auto group) {
    const auto mine = static_cast<std::size_t>(rank);
    Mlp net;
    DistributedDataParallel ddp(net, options(group));
    const at::Tensor first = ddp(a.chunk(kWorld)[mine]).pow(2).mean();
    const at::Tensor second = ddp(b.chunk(kWorld)[mine]).pow(2).mean();
    first.backward();
    second.backward();
    expect_close(gradients_of(*net), gradients_of(*alone));
    EXPECT_EQ(ddp.core().iterations(), 2u);
  });
}

TEST_P(Ddp, TwoForwardsAndOneBackwardReduceOnce) {
  const at::Tensor a = random_tensor({4, 8}, 9);
  const at::Tensor b = random_tensor({4, 8}, 10);
  Mlp alone;
  (alone->forward(a).pow(2).mean() + alone->forward(b).pow(2).mean()).backward();
  ranks([&](int rank, auto group) {
    const auto mine = static_cast<std::size_t>(rank);
    Mlp net;
    DistributedDataParallel ddp(net, options(group));
    (ddp(a.chunk(kWorld)[mine]).pow(2).mean() + ddp(b.chunk(kWorld)[mine]).pow(2).mean()).backward();
    expect_close(gradients_of(*net), gradients_of(*alone));
    EXPECT_EQ(ddp.core().iterations(), 1u);
  });
}

TEST_P(Ddp, TwoModulesTrainedInOneBackward) {
  const at::Tensor x = random_tensor({4, 8}, 11);
  Mlp first_alone(3, 8, 1), second_alone(4, 8, 2);
  second_alone->forward(first_alone->forward(x)).pow(2).mean().backward();
  ranks([&](int rank, auto group) {
    Mlp first(3, 8, 1), second(4, 8, 2);
    DistributedDataParallel front(first, options(group)), back(second, options(group));
    for (int step = 0; step < 3; ++step) {
      front.zero_grad();
      back.zero_grad();
      back(front(x.chunk(kWorld)[static_cast<std::size_t>(rank)])).pow(2).mean().backward();
      expect_close(gradients_of(*first), gradients_of(*first_alone));
      expect_close(gradients_of(*second), gradients_of(*second_alone));
    }
  });
}

// Two heads on one encoder, each with a DDP object of its own; and a DDP object within another one.
TEST_P(Ddp, TwoObjectsMayAverageTheSameParametersInOneBackward) {
  struct Heads : torch::nn::Module {
    Heads(const Mlp& encoder, const Mlp& head)
        : encoder_(register_module("encoder", encoder)), head_(register_module("head", head)) {}
    at::Tensor forward(const at::Tensor& x) { return head_->forward(encoder_->forward(x)); }
    Mlp encoder_, head_;
  };
  const auto input = [](int rank, int step) { return random_tensor({2, 8}, 100 * rank + step); };
  ranks([&](int rank, auto group) {
    Mlp encoder(3, 8, 1), left(2, 8, 2), right(2, 8, 3);
    DistributedDataParallel<Heads> first(std::make_shared<Heads>(encoder, left), options(group));
    first(input(rank, 90)).sum().backward();  // its gradients lie in buckets before the other object is there
    DistributedDataParallel<Heads> second(std::make_shared<Heads>(encoder, right), options(group));
    for (int step = 0; step < 20; ++step) {
      SCOPED_TRACE(concat("step ", step, ", rank ", rank));
      if (step % 3 != 1) {
        first.zero_grad(step % 2 == 0);
        second.zero_grad(step % 2 == 0);
      }
      const auto before = gradients_of(*encoder);
      (first(input(rank, step)).square().sum() + second(input(rank, step + 30)).square().sum()).backward();
      Mlp alone(3, 8, 1), left_alone(2, 8, 2), right_alone(2, 8, 3);
      for (int other = 0; other < kWorld; ++other) {
        ((left_alone->forward(alone->forward(input(other, step))).square().sum() +
          right_alone->forward(alone->forward(input(other, step + 30))).square().sum()) /
         kWorld)
            .backward();
      }
      auto expected = gradients_of(*alone);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        if (step % 3 == 1) expected[i] += before[i];
      }
      expect_close(gradients_of(*encoder), expected, 1e-5);
    }
  });
}

struct MixedImpl : torch::nn::Module {
  MixedImpl() {
    a = register_parameter("a", random_tensor({3, 5}, 1));
    b = register_parameter("b", random_tensor({5}, 2).to(at::kDouble));
    c = register_parameter("c", random_tensor({2, 4, 3, 3}, 3).contiguous(at::MemoryFormat::ChannelsLast));
    scalar = register_parameter("scalar", at::scalar_tensor(0.5));
    frozen = register_parameter("frozen", random_tensor({5}, 4), /*requires_grad=*/false);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor h = torch::tanh(torch::linear(x, a.t()));  // a is used twice
    const at::Tensor image = torch::conv2d(x.reshape({x.size(0), 1, 1, 3}).expand({x.size(0), 4, 5, 3}), c, {}, 1, 1);
    return (torch::matmul(h, a.t()).sum() * scalar + (h.to(at::kDouble) * b * frozen).sum() + image.pow(2).sum()) /
           static_cast<double>(x.size(0));
  }
  at::Tensor a, b, c, scalar, frozen;
};
TORCH_MODULE(Mixed);

// Two dtypes, channels_last, a scalar, a frozen one, one used twice: the gradients are right and keep the parameters'
// layout, in a hook too.
TEST_P(Ddp, ParametersOfEveryKind) {
  const at::Tensor x = random_tensor({4, 3}, 12);
  Mixed alone;
  alone->forward(x).backward();
  for (const bool with_hook : {false, true}) {
    ranks([&](int rank, auto group) {
      Mixed net;
      DistributedDataParallel ddp(net, options(group));
      if (with_hook) {
        ddp.register_comm_hook([](GradBucket& bucket) {
          const auto gradients = bucket.gradients();
          for (std::size_t i = 0; i < gradients.size(); ++i) {
            EXPECT_EQ(gradients[i].strides(), bucket.parameters()[i].strides()) << bucket.parameter_names()[i];
            EXPECT_EQ(gradients[i].sizes(), bucket.parameters()[i].sizes());
            EXPECT_TRUE(gradients[i].is_alias_of(bucket.buffer()));
          }
          bucket.group().all_reduce({bucket.buffer().div_(bucket.divisor())})->wait();
          return bucket.buffer();
        });
      }
      for (int step = 0; step < 3; ++step) {
        ddp.zero_grad();
        ddp(x.chunk(kWorld)[static_cast<std::size_t>(rank)]).backward();
        expect_close(gradients_of(*net), gradients_of(*alone));
        EXPECT_EQ(net->c.grad().strides(), net->c.strides());
        EXPECT_FALSE(net->frozen.grad().defined());
      }
    });
  }
}

TEST_P(Ddp, BucketViewsAreTheGradientsAndTheyLeaveOldBuckets) {
  ranks([&](int, auto group) {
    Mlp net(6, 8);
    auto made = options(group);
    made.bucket_cap_mb = 0.0005;
    DistributedDataParallel ddp(net, made);
    Mlp alone(6, 8);
    // No zero_grad between the first two: the values must survive the rebuild of the buckets.
    for (int step = 0; step < 4; ++step) {
      ddp(random_tensor({2, 8}, 20 + step).add(0)).pow(2).sum().backward();
      alone->forward(random_tensor({2, 8}, 20 + step)).pow(2).sum().backward();
      expect_close(gradients_of(*net), gradients_of(*alone), 1e-5);
      std::set<const void*> storages;
      for (const auto& parameter : net->parameters()) storages.insert(parameter.grad().storage().data());
      EXPECT_EQ(storages.size(), GetParam().view ? 1u : net->parameters().size());
    }
  });
}

// Without bucket views a gradient that is kept stays what it was, whatever the buckets hold later; one that accumulates
// is reduced where it is.
TEST_P(Ddp, GradientsThatAreKeptKeepTheirValues) {
  if (GetParam().view) return;
  const auto x = [](int step) { return random_tensor({4, 8}, 70 + step).chunk(kWorld); };
  run_ranks(GetParam(), kWorld, [&](int rank, auto group) {
    Mlp net(2, 8);
    std::vector<at::Tensor> kept, views, values;
    {
      DistributedDataParallel ddp(net, options_for(GetParam(), group));
      const auto backward = [&](int step) { ddp(x(step)[static_cast<std::size_t>(rank)]).pow(2).mean().backward(); };
      for (int step = 0; step < 4; ++step) {
        ddp.zero_grad(/*set_to_none=*/true);
        backward(step);
        for (const auto& parameter : net->parameters()) {
          kept.push_back(parameter.grad());
          views.push_back(parameter.grad().reshape(-1));
          values.push_back(parameter.grad().clone());
        }
      }
      for (std::size_t i = 0; i < kept.size(); ++i) {
        EXPECT_TRUE(kept[i].equal(values[i])) << "gradient " << i;
        EXPECT_TRUE(views[i].equal(values[i].reshape(-1))) << "view of gradient " << i;
      }
      const auto last = std::vector<at::Tensor>(kept.end() - 4, kept.end());
      backward(4);
      for (std::size_t i = 0; i < last.size(); ++i) {
        EXPECT_TRUE(last[i].is_same(net->parameters()[i].grad())) << "an accumulating gradient stays the same tensor";
        EXPECT_FALSE(last[i].equal(values[values.size() - 4 + i]));
      }
      values = gradients_of(*net);
    }
    for (std::size_t i = 0; i < values.size(); ++i) EXPECT_TRUE(net->parameters()[i].grad().equal(values[i]));
  });
}

// A pointer into a gradient that was kept (an array of NumPy, say) does not follow the gradient to other memory.
TEST(SlotLoan, TheMemoryUnderAKeptGradientOutlivesTheGradientsMoveThere) {
  bool freed = false;
  std::vector<float> memory(4, 2.0F);
  at::Tensor slot = at::from_blob(
      memory.data(), {4}, [&](void*) { freed = true; }, at::kFloat);
  internal::SlotLoan loan;
  at::Tensor kept = loan.lend(slot);
  loan.reclaim();
  slot.reset();
  EXPECT_NE(kept.const_data_ptr(), memory.data());
  EXPECT_TRUE(at::equal(kept, at::full({4}, 2.0F)));
  EXPECT_FALSE(freed) << "an array over the memory is still there";
  kept.reset();
  EXPECT_TRUE(freed);
}

TEST_P(Ddp, BuffersComeFromRankZeroBeforeATrainingForward) {
  struct CounterImpl : torch::nn::Module {
    CounterImpl() {
      weight = register_parameter("weight", at::ones({2}));
      seen = register_buffer("seen", at::zeros({1}, at::kLong));
      scale = register_buffer("scale", at::ones({2}));
    }
    at::Tensor forward(const at::Tensor& x) {
      last = seen.item<std::int64_t>();
      return (x * weight * scale.detach().clone()).sum();
    }
    at::Tensor weight, seen, scale;
    std::int64_t last = 0;
  };
  for (const bool broadcast : {true, false}) {
    ranks([&](int rank, auto group) {
      auto net = std::make_shared<CounterImpl>();
      auto made = options(group);
      made.broadcast_buffers = broadcast;
      net->seen.fill_(rank + 1);
      DistributedDataParallel<CounterImpl> ddp(net, made);
      const at::Tensor x = at::ones({2});
      ddp(x).backward();
      EXPECT_EQ(net->last, broadcast ? 1 : rank + 1);
      net->seen.fill_(10 + rank);
      ddp.eval();
      ddp(x).backward();
      EXPECT_EQ(net->last, 10 + rank) << "no broadcast in eval mode";
      ddp.train();
      {
        const auto guard = ddp.no_sync();
        ddp(x).backward();
        EXPECT_EQ(net->last, broadcast ? 10 : 10 + rank) << "the forward before it was synchronized";
        net->seen.fill_(20 + rank);
        ddp(x).backward();
        EXPECT_EQ(net->last, 20 + rank) << "the forward before it was not synchronized";
      }
      ddp(x).backward();
      EXPECT_EQ(net->last, 20 + rank) << "the first forward after no_sync skips it, as in PyTorch";
      ddp(x).backward();
      EXPECT_EQ(net->last, broadcast ? 20 : 20 + rank);
    });
  }
}

// `mine` of every rank.
std::vector<at::Tensor> from_all(ProcessGroup& group, const at::Tensor& mine) {
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < group.size(); ++rank) all.push_back(at::empty_like(mine));
  group.all_gather({all}, {mine})->wait();
  return all;
}

// Statistics of batches stay alike although each synchronized forward follows a local one.
TEST_P(Ddp, GradientAccumulationKeepsBuffersAlike) {
  ranks([&](int rank, auto group) {
    torch::nn::BatchNorm1d net(2);
    DistributedDataParallel ddp(net, options(group));
    for (int step = 0; step < 3; ++step) {
      {
        const auto guard = ddp.no_sync();
        ddp(at::full({2, 2}, rank + step, at::kFloat)).sum().backward();
        const auto means = from_all(*group, net->running_mean);
        const double factor = 0.9;  // what is left of the mean that both had before
        EXPECT_NEAR((means[1] - means[0]).abs().max().template item<double>(), 1 - factor, 1e-6);
      }
      ddp(at::full({2, 2}, rank + step, at::kFloat)).sum().backward();
    }
  });
}

// Without buffers nothing is sent.
TEST_P(Ddp, ALocalPassNeedsNoGroupWithoutBuffers) {
  ranks([&](int rank, auto group) {
    Mlp net;
    DistributedDataParallel ddp(net, options(group));
    ddp(random_tensor({2, 8}, rank)).sum().backward();
    group->barrier()->wait();
    group->shutdown();
    const auto guard = ddp.no_sync();
    EXPECT_NO_THROW(ddp(random_tensor({2, 8}, rank)).sum().backward());
  });
}

TEST_P(Ddp, TwoForwardsOfBatchNormalizationBeforeOneBackward) {
  ranks([&](int rank, auto group) {
    at::manual_seed(1);
    torch::nn::Sequential net(torch::nn::Linear(2, 2), torch::nn::BatchNorm1d(2));
    DistributedDataParallel ddp(net, options(group));
    for (int step = 0; step < 2; ++step) {
      const at::Tensor first = ddp(at::arange(8.0, at::kFloat).view({4, 2}) * (rank + 1));
      const at::Tensor second = ddp(at::arange(8.0, at::kFloat).view({4, 2}).square());
      (first * second.square()).sum().backward();
    }
    for (const at::Tensor& parameter : net->parameters()) {
      const auto all = from_all(*group, parameter.grad());
      EXPECT_TRUE(all[0].equal(all[1]));
    }
  });
}

struct NormImpl : torch::nn::Module {
  explicit NormImpl(int rank) {
    weight = register_parameter("weight", at::ones({2}));
    value = register_buffer("value", at::full({1}, rank + 1.0));
  }
  at::Tensor forward() { return weight.sum() * value.item<double>(); }
  at::Tensor weight, value;
};
TORCH_MODULE(Norm);

TEST_P(Ddp, BuffersAreTakenOverAtConstructionWhereOnlyForwardsAreToldNotTo) {
  ranks([&](int rank, auto group) {
    auto made = options(group);
    made.forward_sync_buffers = false;
    Norm net(rank);
    DistributedDataParallel ddp(net, made);
    EXPECT_EQ(net->value.item<double>(), 1);
    net->value.fill_(10 + rank);
    ddp().backward();
    EXPECT_EQ(net->value.item<double>(), 10 + rank);
    made.broadcast_buffers = false;
    made.forward_sync_buffers = true;
    Norm other(rank);
    DistributedDataParallel both(other, made);
    EXPECT_EQ(other->value.item<double>(), 1);
    other->value.fill_(10 + rank);
    both().backward();
    EXPECT_EQ(other->value.item<double>(), 10);
  });
}

// One rank evaluates alone without eval(): neither that forward nor the next one waits for ranks that do something
// else.
TEST_P(Ddp, AForwardWithoutGradientsIsLocalToItsRank) {
  ranks([&](int rank, auto group) {
    Norm net(rank);
    DistributedDataParallel ddp(net, options(group));
    for (int step = 0; step < 3; ++step) {
      if (rank == step % 2) {
        const torch::NoGradGuard no_grad;
        (void)ddp();
      }
      net->value.fill_(10 * step + rank);
      ddp().backward();
      EXPECT_EQ(net->value.item<double>(), 10 * step);
    }
  });
}

TEST_P(Ddp, BucketsAreRebuiltInTheOrderOfReadiness) {
  ranks([&](int rank, auto group) {
    // Used in the order 1, 0, 2, so gradients become ready as 2, 0, 1.
    struct OddImpl : torch::nn::Module {
      OddImpl() {
        for (int i = 0; i < 3; ++i) weights.push_back(register_parameter(concat("w", i), random_tensor({4, 4}, i)));
      }
      at::Tensor forward(at::Tensor x) {
        for (const std::size_t i : {1u, 0u, 2u}) x = torch::tanh(torch::matmul(x, weights[i]));
        return x.sum();
      }
      std::vector<at::Tensor> weights;
    };
    auto made = options(group);
    made.bucket_cap_mb = 64.0 / (1 << 20);
    DistributedDataParallel ddp(std::make_shared<OddImpl>(), made);
    EXPECT_EQ(ddp.core().bucket_plan(), (BucketPlan{{0, 1, 2}}));
    for (int step = 0; step < 3; ++step) ddp(random_tensor({2, 4}, rank)).backward();
    EXPECT_EQ(ddp.core().bucket_plan(), (BucketPlan{{2}, {0}, {1}}));
    made.bucket_cap_mb.reset();
    made.bucket_caps_mb = {64.0 / (1 << 20), 128.0 / (1 << 20)};
    DistributedDataParallel capped(std::make_shared<OddImpl>(), made);
    for (int step = 0; step < 3; ++step) capped(random_tensor({2, 4}, rank)).backward();
    EXPECT_EQ(capped.core().bucket_plan(), (BucketPlan{{2}, {0, 1}}));
  });
}

TEST_P(Ddp, CreateGraphReplacesGradientsAndTheyAreStillReduced) {
  const at::Tensor x = random_tensor({4, 8}, 13);
  Mlp alone;
  alone->forward(x).pow(2).mean().backward();
  ranks([&](int rank, auto group) {
    Mlp net;
    DistributedDataParallel ddp(net, options(group));
    for (int step = 0; step < 3; ++step) {
      net->zero_grad(step % 2 == 0);
      const at::Tensor loss = ddp(x.chunk(kWorld)[static_cast<std::size_t>(rank)]).pow(2).mean();
      loss.backward({}, /*retain_graph=*/true, /*create_graph=*/true);
      expect_close(gradients_of(*net), gradients_of(*alone));
      for (auto& parameter : net->parameters())
        parameter.mutable_grad() = parameter.grad().detach().clone();  // breaks the cycle with the graph
    }
  });
}

TEST_P(Ddp, CreateGraphIsWarnedOfOnce) {
  log::set_level(log::Level::warn);
  ::testing::internal::CaptureStderr();
  ranks([&](int rank, auto group) {
    Mlp net;
    DistributedDataParallel ddp(net, options(group));
    for (int step = 0; step < 2; ++step) {
      ddp(random_tensor({2, 8}, rank)).pow(2).mean().backward({}, /*retain_graph=*/true, /*create_graph=*/true);
      for (auto& parameter : net->parameters()) parameter.mutable_grad() = at::Tensor();
    }
  });
  const std::string said = ::testing::internal::GetCapturedStderr();
  log::set_level(log::Level::off);
  int times = 0;
  for (std::size_t at = 0; (at = said.find("averages gradients, but not their graphs", at)) != std::string::npos; ++at)
    ++times;
  EXPECT_EQ(times, kWorld) << said;
}

// ---- forward() of any signature
// --------------------------------------------------------------------------------------------------------------------

struct Detections {
  at::Tensor boxes;
  std::vector<at::Tensor> masks;
  int count = 0;
};
template <class Visit>
void visit_tensors(Detections& detections, Visit&& visit) {
  visit(detections.boxes);
  visit(detections.masks);
}

struct PickyImpl : torch::nn::Module {
  PickyImpl() { weight = register_parameter("weight", at::ones({2})); }
  Detections forward(const std::map<std::string, at::Tensor>& inputs, int rank, const std::string& word,
                     std::unique_ptr<int> only_moves, int& counter) {
    ++counter;
    return {inputs.at(word) * weight, {weight * 2}, rank + *only_moves};
  }
  at::Tensor weight;
};
TORCH_MODULE(Picky);

TEST_P(Ddp, ForwardTakesAndReturnsAnything) {
  ranks([&](int rank, auto group) {
    Picky net;
    DistributedDataParallel<Picky> ddp(net, options(group));
    int counter = 0;
    for (int step = 0; step < 2; ++step) {
      ddp.zero_grad();
      const std::map<std::string, at::Tensor> inputs{{"x", at::full({2}, rank + 1.0)}};
      const Detections out = ddp(inputs, rank, "x", std::make_unique<int>(5), counter);
      EXPECT_EQ(out.count, rank + 5);
      (out.boxes.sum() + out.masks[0].sum()).backward();
      EXPECT_TRUE(net->weight.grad().equal(at::full({2}, 3.5)));
    }
    EXPECT_EQ(counter, 2);
  });
}

// Passes calls on, and remembers the reductions.
class ReductionsOf final : public CallGroup {
 public:
  ReductionsOf(std::shared_ptr<ProcessGroup> wrapped, bool multiplies)
      : CallGroup(wrapped->rank(), wrapped->size()), wrapped_(std::move(wrapped)), multiplies_(multiplies) {}
  bool multiplies_as_it_sums() const override { return multiplies_; }
  std::vector<ReduceOp::Kind> kinds;

 protected:
  std::shared_ptr<Work> do_call(GroupCall& call) override {
    if (const auto* reduction = std::get_if<AllReduceCall>(&call)) kinds.push_back(reduction->options.op.kind);
    return call_on(*wrapped_, call, timeout());
  }

 private:
  const std::shared_ptr<ProcessGroup> wrapped_;
  const bool multiplies_;
};

TEST(Averages, AreMultipliedByAGroupThatCanAndByDdpElseWithTheSameBits) {
  for (const bool view : {false, true}) {
    run_ranks(gradwire::testing::Setup{"threads"}, 3, [&](int rank, const std::shared_ptr<ProcessGroup>& wrapped) {
      std::vector<std::vector<at::Tensor>> gradients;
      for (const bool multiplies : {false, true}) {
        const auto group = std::make_shared<ReductionsOf>(wrapped, multiplies);
        Mlp net;
        DdpOptions options;
        options.process_group = group;
        options.gradient_as_bucket_view = view;
        DistributedDataParallel ddp(net, options);
        for (int step = 0; step < 2; ++step) {
          ddp.zero_grad();
          ddp(random_tensor({4, 8}, rank)).pow(2).mean().backward();
        }
        EXPECT_FALSE(group->kinds.empty());
        for (const auto kind : group->kinds)
          EXPECT_EQ(kind, multiplies ? ReduceOp::Kind::premul_sum : ReduceOp::Kind::sum);
        gradients.push_back(gradients_of(*net));
      }
      for (std::size_t i = 0; i < gradients[0].size(); ++i) EXPECT_TRUE(gradients[0][i].equal(gradients[1][i])) << i;
    });
  }
}

TEST(OutputTensors, AreFoundWhereverTheyAre) {
  const at::Tensor t = at::ones({1});
  using internal::tensors_in;
  EXPECT_EQ(tensors_in(t).size(), 1u);
  EXPECT_EQ(tensors_in(std::vector<at::Tensor>{t, t}).size(), 2u);
  EXPECT_EQ(tensors_in(std::make_tuple(t, 1, std::string("a"), std::make_pair(t, 2.0))).size(), 2u);
  EXPECT_EQ(tensors_in(std::optional<at::Tensor>()).size(), 0u);
  EXPECT_EQ(tensors_in(std::optional<at::Tensor>(t)).size(), 1u);
  EXPECT_EQ(tensors_in(std::array<at::Tensor, 2>{t, t}).size(), 2u);
  EXPECT_EQ(tensors_in(std::map<int, std::vector<at::Tensor>>{{1, {t, t}}, {2, {t}}}).size(), 3u);
  EXPECT_EQ(tensors_in(std::make_shared<std::vector<at::Tensor>>(3, t)).size(), 3u);
  EXPECT_EQ(tensors_in(Detections{t, {t, t}, 1}).size(), 3u);
  EXPECT_EQ(tensors_in(std::vector<bool>{true}).size(), 0u);
  EXPECT_EQ(tensors_in(42).size(), 0u);
}

}  // namespace
}  // namespace gradwire::testing::ddp_test

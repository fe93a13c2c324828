// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// DDP over shared memory and over Gloo, each rank a process. The test's own process stays clear of autograd, which does
// not survive a fork.
#include "gradwire/ddp/ddp_test_support.h"

#include <torch/nn/modules/embedding.h>
#include <torch/optim/sgd.h>
#include "gradwire/hooks/registry.h"
#include "tests/support/named_group.h"
#include "tests/support/ranks.h"

namespace gradwire::testing::ddp_processes_test {
namespace {

constexpr int kWorld = 2;

class DdpProcesses : public ::testing::TestWithParam<std::string> {
 protected:
  static void in_processes(const std::function<void(int, std::shared_ptr<ProcessGroup>)>& body) {
    test_support::run_ranks(GetParam(), kWorld, [&](int rank, const std::shared_ptr<Store>& store) {
      at::set_num_threads(1);
      body(rank, make_process_group(GetParam(), store, rank, kWorld, std::chrono::seconds(60)));
    });
  }
};

std::vector<at::Tensor> train(int rank, const Setup& setup, std::shared_ptr<ProcessGroup> group,
                              const std::string& hook) {
  Mlp net(6, 16);
  auto options = options_for(setup, std::move(group));
  options.bucket_cap_mb = 0.002;
  DistributedDataParallel ddp(net, options);
  if (!hook.empty()) ddp.register_comm_hook(make_hook(hook));
  torch::optim::SGD optimizer(ddp.parameters(), 0.1);
  for (int step = 0; step < 5; ++step) {
    optimizer.zero_grad(step % 2 == 0);
    const at::Tensor batch = random_tensor({8, 16}, step).chunk(kWorld)[static_cast<std::size_t>(rank)];
    ddp(batch).pow(2).mean().backward();
    optimizer.step();
  }
  std::vector<at::Tensor> parameters;
  for (const auto& parameter : net->parameters()) parameters.push_back(parameter.detach().clone());
  return parameters;
}

TEST_P(DdpProcesses, TrainLikeOneRankOnTheWholeBatch) {
  in_processes([](int rank, std::shared_ptr<ProcessGroup> group) {
    Mlp alone(6, 16);
    torch::optim::SGD optimizer(alone->parameters(), 0.1);
    for (int step = 0; step < 5; ++step) {
      optimizer.zero_grad();
      alone->forward(random_tensor({8, 16}, step)).pow(2).mean().backward();
      optimizer.step();
    }
    for (const bool view : {false, true}) {
      for (const int lanes : {0, 1, 2})
        expect_close(train(rank, {GetParam(), lanes, view}, group, ""), alone->parameters());
    }
  });
}

// The multiplication by 1/N is made in the copy in one case and in the reduction in the other; the bits are the same,
// and the same on all ranks.
TEST_P(DdpProcesses, BucketViewsAndCopiesGiveTheSameBitsOnAllRanks) {
  in_processes([](int rank, std::shared_ptr<ProcessGroup> group) {
    const auto copied = train(rank, {GetParam(), 1, false}, group, "");
    const auto viewed = train(rank, {GetParam(), 2, true}, group, "");
    for (std::size_t i = 0; i < copied.size(); ++i) {
      EXPECT_TRUE(copied[i].equal(viewed[i])) << "parameter " << i;
      at::Tensor zero = copied[i].clone();
      group->broadcast({zero})->wait();
      EXPECT_TRUE(zero.equal(copied[i])) << "parameter " << i;
    }
  });
}

TEST_P(DdpProcesses, HooksCompress) {
  in_processes([](int rank, std::shared_ptr<ProcessGroup> group) {
    const auto plain = train(rank, {GetParam(), 1, true}, group, "");
    expect_close(train(rank, {GetParam(), 1, true}, group, "allreduce"), plain);
    expect_close(train(rank, {GetParam(), 2, true}, group, "fp16_compress"), plain, 1e-3);
    expect_close(train(rank, {GetParam(), 2, false}, group, "bf16_compress"), plain, 1e-2);
  });
}

struct WordsImpl : torch::nn::Module {
  WordsImpl() {
    table = register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(12, 8).sparse(true)));
    body = register_module("body", Mlp(2, 8));
    fill(*this, 4);
  }
  at::Tensor forward(const at::Tensor& rows) { return body->forward(table(rows)).square().sum(); }
  torch::nn::Embedding table{nullptr};
  Mlp body{nullptr};
};
TORCH_MODULE(Words);

// Rank 0 has two batches, rank 1 four: all ranks end with the parameters that one process finds.
TEST_P(DdpProcesses, UnevenInputsWithSparseGradients) {
  in_processes([](int rank, std::shared_ptr<ProcessGroup> group) {
    const auto rows = [](int r, int step) { return torch::tensor(std::vector<std::int64_t>{r, step, 2 * step + r}); };
    Words alone;
    torch::optim::SGD step_alone(alone->parameters(), 0.1);
    for (int step = 0; step < 4; ++step) {
      step_alone.zero_grad();
      for (int r = step < 2 ? 0 : 1; r < kWorld; ++r) (alone->forward(rows(r, step)) / (step < 2 ? 2 : 1)).backward();
      step_alone.step();
    }
    for (const int lanes : {0, 1}) {
      Words net;
      DistributedDataParallel ddp(net, options_for({GetParam(), lanes, lanes == 1}, group));
      torch::optim::SGD optimizer(ddp.parameters(), 0.1);
      {
        Join join = ddp.join({.divide_by_initial_world_size = false});
        for (int step = 0; step < 2 + 2 * rank; ++step) {
          optimizer.zero_grad();
          ddp(rows(rank, step)).backward();
          optimizer.step();
        }
      }
      expect_close(net->parameters(), alone->parameters());
      for (const auto& parameter : net->parameters()) {
        at::Tensor first = parameter.detach().clone();
        group->broadcast({first})->wait();
        EXPECT_TRUE(first.equal(parameter));
      }
    }
  });
}

TEST_P(DdpProcesses, LowPrecisionGivesTheSameBitsOnAllRanks) {
  in_processes([](int rank, std::shared_ptr<ProcessGroup> group) {
    for (const bool view : {false, true}) {
      auto options = options_for({GetParam(), 1, view}, group);
      options.mixed_precision = MixedPrecision{.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat};
      Mlp net(3, 8), low(3, 8);
      low->to(at::kBFloat16);
      DistributedDataParallel ddp(net, options);
      for (int step = 0; step < 3; ++step) {
        const auto input = [&](int r) { return random_tensor({2, 8}, 10 * r + step); };
        ddp.zero_grad();
        ddp(input(rank)).sum().backward();
        std::vector<at::Tensor> expected;
        for (int r = 0; r < kWorld; ++r) {
          low->zero_grad();
          low->forward(input(r).to(at::kBFloat16)).sum().backward();
          const auto gradients = gradients_of(*low);
          for (std::size_t i = 0; i < gradients.size(); ++i) {
            if (r == 0) expected.push_back(gradients[i].to(at::kFloat));
            if (r == 1) expected[i] = (expected[i] + gradients[i].to(at::kFloat)) / kWorld;
          }
        }
        const auto mine = gradients_of(*net);
        for (std::size_t i = 0; i < mine.size(); ++i) EXPECT_TRUE(mine[i].equal(expected[i])) << "parameter " << i;
      }
    }
  });
}

TEST_P(DdpProcesses, AFailureReachesTheOtherProcessWithItsCause) {
  in_processes([](int rank, std::shared_ptr<ProcessGroup> group) {
    DistributedDataParallel ddp(Mlp(), options_for({GetParam(), 1, true}, group));
    ddp.register_comm_hook([&](GradBucket& bucket) -> at::Tensor {
      if (rank == 1) throw std::runtime_error("the disk is full");
      bucket.group().all_reduce({bucket.buffer()})->wait();
      return bucket.buffer();
    });
    const std::string error = error_of([&] { ddp(random_tensor({2, 8}, rank)).sum().backward(); });
    EXPECT_NE(error.find("the disk is full"), std::string::npos) << error;
    group->barrier()->wait();  // the user's own group is not at its end
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, DdpProcesses, ::testing::ValuesIn(test_support::process_backends()),
                         test_support::name_case);

}  // namespace
}  // namespace gradwire::testing::ddp_processes_test

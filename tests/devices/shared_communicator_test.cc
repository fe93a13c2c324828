// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// All that a program uses over one group on a device (two DDPs, SyncBatchNorm, differentiable collectives, and
// collectives of its own) shares one communicator, and gives what it gives on the CPU.
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "gradwire/ddp/device_test_support.h"
#include "gradwire/functional/functional.h"
#include "gradwire/nn/sync_batch_norm.h"

namespace gradwire::testing::shared_communicator_test {
namespace {

constexpr int kRanks = 3;

struct NormalizedImpl : torch::nn::Module {
  NormalizedImpl(const c10::Device& device, std::shared_ptr<ProcessGroup> group)
      : norm(torch::nn::BatchNormOptions(8).affine(false).track_running_stats(false), group), group_(std::move(group)) {
    for (int i = 0; i < 2; ++i)
      weights.push_back(register_parameter(concat("weight", i), random_tensor({8, 8}, i).to(device)));
    register_module("norm", norm);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor normalized = norm(torch::tanh(x.matmul(weights[0]))).matmul(weights[1]);
    return functional::all_reduce(normalized.square().sum(0), group_).sum();
  }
  std::vector<at::Tensor> weights;
  SyncBatchNorm norm;

 private:
  const std::shared_ptr<ProcessGroup> group_;
};
TORCH_MODULE(Normalized);

// The gradients of both models after some steps, and a sum of the program's own.
std::vector<at::Tensor> train(int rank, const std::shared_ptr<ProcessGroup>& group, const c10::Device& device) {
  Normalized one(device, group), two(device, group);
  DistributedDataParallel first(one, options_for({"threads", -1, true}, group));
  DistributedDataParallel second(two, options_for({"threads", -1, false}, group));
  at::Tensor total = at::zeros({1}, at::TensorOptions(device));
  for (int step = 0; step < 3; ++step) {
    const at::Tensor x = random_tensor({4, 8}, 10 * step + rank).to(device);
    first(x).backward();
    const at::Tensor loss = second(x);
    total += loss.detach();
    group->all_reduce({total})->wait();
    loss.backward();
  }
  std::vector<at::Tensor> results{total.cpu()};
  for (const auto& model : {one, two}) {
    for (const at::Tensor& gradient : gradients_of(*model)) results.push_back(gradient.cpu());
  }
  group->barrier()->wait();
  return results;
}

TEST(SharedCommunicator, ServesSyncBatchNormFunctionalCollectivesAndTwoDdps) {
  std::array<std::vector<at::Tensor>, kRanks> on_cpu;
  run_ranks({"threads"}, kRanks, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    on_cpu[static_cast<std::size_t>(rank)] = train(rank, group, at::kCPU);
  });
  const std::size_t communicators = run_device_ranks(kRanks, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const c10::StreamGuard users(new_stream(fake_device(rank)));
    expect_close(train(rank, group, fake_device(rank)), on_cpu[static_cast<std::size_t>(rank)], 1e-4);
  });
  EXPECT_EQ(communicators, 1u);
  EXPECT_EQ(races(), "");
}

}  // namespace
}  // namespace gradwire::testing::shared_communicator_test

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A checkpoint of a run on the CPU is restored to a module on a device: the module stays there, the optimizer's state
// comes there, and the run goes on as on the CPU. Runs on any device (tests/support/test_device.h). The fake device
// cannot be saved: libtorch knows how to for its own devices only.
#include <c10/core/DeviceGuard.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/ddp/device_test_support.h"
#include "gradwire/hooks/registry.h"
#include "gradwire/optim/checkpoint.h"
#include "tests/support/ranks.h"
#include "tests/support/temporary_folder.h"

namespace gradwire::testing::checkpoint_device_test {
namespace {

struct Training {
  Training(const std::shared_ptr<ProcessGroup>& group, const c10::Device& device)
      : net(device), ddp(net, options_for({group->name()}, group)), device(device) {
    ddp.register_comm_hook(make_hook("int8"));
    optimizer = std::make_unique<torch::optim::SGD>(net->parameters(), torch::optim::SGDOptions(0.5).momentum(0.5));
  }
  void step(int number, int rank) {
    optimizer->zero_grad();
    ddp(random_tensor({4, 8}, 100 * number + rank).to(device)).sum().backward();
    optimizer->step();
  }
  std::vector<at::Tensor> values() const {
    std::vector<at::Tensor> copies;
    for (const at::Tensor& parameter : net->parameters()) copies.push_back(parameter.detach().cpu().clone());
    return copies;
  }

  Layers net;
  DistributedDataParallel<Layers> ddp;
  c10::Device device;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

TEST(CheckpointOnDevice, ARunThatContinuesOnADeviceStaysThereAndIsTheOneOnTheCpu) {
  const test_support::TemporaryFolder folder;
  const std::string file = folder.path() + "/run";
  const int world = std::min(2, device_count());
  std::vector<at::Tensor> whole;
  run_ranks({"threads"}, world, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    Training training(group, at::kCPU);
    for (int step = 0; step < 6; ++step) {
      if (step == 3) save_checkpoint(file, training.ddp, *training.optimizer);
      training.step(step, rank);
    }
    if (rank == 0) whole = training.values();
    group->barrier()->wait();
  });
  run_ranks({"threads"}, world, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const c10::Device device = test_device(rank);
    const c10::DeviceGuard here(device);
    Training training(group, device);
    load_checkpoint(file, training.ddp, *training.optimizer);
    EXPECT_EQ(training.net->weights.front().device(), device);
    for (const auto& [parameter, state] : training.optimizer->state())
      EXPECT_EQ(static_cast<torch::optim::SGDParamState&>(*state).momentum_buffer().device(), device);
    for (int step = 3; step < 6; ++step) training.step(step, rank);
    const std::vector<at::Tensor> values = training.values();
    ASSERT_EQ(values.size(), whole.size());
    for (std::size_t i = 0; i < values.size(); ++i)
      EXPECT_TRUE(at::allclose(values[i], whole[i], 1e-5, 1e-6)) << "rank " << rank << ", parameter " << i;
    group->barrier()->wait();
  });
  EXPECT_EQ(races(), "");
}

}  // namespace
}  // namespace gradwire::testing::checkpoint_device_test

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include <torch/torch.h>

#include <iostream>

#include "gradwire/ddp/distributed_data_parallel.h"
#include "gradwire/process_group/init.h"

int main() {
  const auto group = gradwire::init_process_group();  // reads rank and world size from the environment
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(8, 64), torch::nn::Tanh(), torch::nn::Linear(64, 1));
  {
    gradwire::DistributedDataParallel ddp(net);
    torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.005));
    torch::manual_seed(100 + group->rank());  // every rank draws different samples
    for (int step = 0; step < 200; ++step) {
      const auto x = torch::randn({32, 8});
      const auto target = x.sum(1, /*keepdim=*/true);
      optimizer.zero_grad();
      const auto loss = torch::mse_loss(ddp(x), target);
      loss.backward();  // afterwards every rank holds the average of all ranks' gradients
      optimizer.step();
      if (step % 50 == 0 && group->rank() == 0) std::cout << "step " << step << " loss " << loss.item<float>() << '\n';
    }
  }
  gradwire::destroy_process_group();
}

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include <torch/torch.h>

#include <iostream>

#include "gradwire/ddp/distributed_data_parallel.h"
#include "gradwire/process_group/init.h"

int main() {
  const auto group = gradwire::init_process_group();  // reads rank and world size from the environment
  torch::nn::Linear net(8, 1);
  {
    gradwire::DistributedDataParallel ddp(net);
    torch::optim::SGD optimizer(ddp.parameters(), 0.1);
    torch::manual_seed(group->rank());  // every rank draws different samples
    for (int step = 0; step <= 100; ++step) {
      const auto x = torch::randn({32, 8});
      optimizer.zero_grad();
      const auto loss = torch::mse_loss(ddp(x), x.sum(1, /*keepdim=*/true));
      loss.backward();  // afterwards every rank holds the average of all ranks' gradients
      optimizer.step();
      if (step % 50 == 0 && group->rank() == 0)
        std::cout << "step " << step << " loss " << loss.item<float>() << std::endl;
    }
  }
  gradwire::destroy_process_group();
}

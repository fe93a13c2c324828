// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The first lines of the header of DistributedDataParallel as a program: a plain module, and one include. Runs as one
// rank, without a launcher. Exits with 1 where the network has learned nothing.
#include <torch/torch.h>

#include <cstdio>
#include <utility>

#include "gradwire/gradwire.h"

struct Net : torch::nn::Module {
  Net() { register_module("layer", layer); }
  torch::Tensor forward(const torch::Tensor& x) { return layer(x); }

  torch::nn::Linear layer{4, 1};
};

torch::Tensor loss_of(const torch::Tensor& output, const torch::Tensor& target) {
  return torch::mse_loss(output, target);
}

int main() {
  const auto group = gradwire::init_process_group();
  double first = 0;
  double last = 0;
  {
    Net net;
    gradwire::DistributedDataParallel ddp(net);
    gradwire::DistributedDataParallel shared(std::make_shared<Net>());
    gradwire::DistributedDataParallel owned{Net()};
    torch::optim::SGD optimizer(ddp.parameters(), 0.1);
    for (int step = 0; step < 50; ++step) {
      const auto x = torch::randn({16, 4});
      optimizer.zero_grad();
      const auto loss = loss_of(ddp(x), x.sum(1, true));
      loss.backward();
      optimizer.step();
      last = loss.item<double>();
      if (step == 0) first = last;
    }
  }
  std::printf("umbrella: rank %d of %d, loss %g to %g\n", group->rank(), group->size(), first, last);
  gradwire::destroy_process_group();
  return last < 0.1 * first ? 0 : 1;
}

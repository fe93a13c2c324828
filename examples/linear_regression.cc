// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Linear regression, the smallest training program: each rank draws samples of its own, and DDP averages the gradients.
//
//   gradwire-run -n 2 linear_regression
//
// The ranks print the weights that they have learned: the true ones, and the same on every rank.
#include <torch/torch.h>

#include <cstdio>

#include "gradwire/gradwire.h"

namespace {

struct Line : torch::nn::Module {
  Line() { register_module("weights", weights); }
  torch::Tensor forward(const torch::Tensor& x) { return weights(x); }

  torch::nn::Linear weights{3, 1};
};

void train(int rank) {
  Line line;  // rank 0's values count: DDP sends them to the others
  gradwire::DistributedDataParallel ddp(line);
  torch::optim::SGD optimizer(ddp.parameters(), 0.1);

  const auto truth = torch::tensor({2.0F, -1.0F, 0.5F});
  torch::manual_seed(100 + rank);  // every rank draws different samples
  for (int step = 0; step <= 100; ++step) {
    const auto x = torch::randn({32, 3});
    const auto target = x.matmul(truth).unsqueeze(1) + 0.25 + 0.01 * torch::randn({32, 1});
    optimizer.zero_grad();
    const auto loss = torch::mse_loss(ddp(x), target);
    loss.backward();  // afterwards every rank holds the average of all ranks' gradients
    optimizer.step();
    if (rank == 0 && step % 25 == 0) std::printf("step %3d  loss %.5f\n", step, loss.item<double>());
  }
  const auto w = line.weights->weight[0];
  std::printf("rank %d ends with weights %.9g %.9g %.9g, bias %.9g\n", rank, w[0].item<double>(), w[1].item<double>(),
              w[2].item<double>(), line.weights->bias.item<double>());
}

}  // namespace

int main() {
  const auto group = gradwire::init_process_group();  // without a launcher: one rank
  train(group->rank());
  gradwire::destroy_process_group();
}

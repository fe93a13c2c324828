// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// ZeRO: each rank keeps the optimizer's state of its part of the parameters only, and steps that part. The parameters
// have the same bits as with the plain optimizer. A checkpoint in the middle, and a second object that goes on from it.
//
//   gradwire-run -n 2 zero
#include <torch/torch.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>

#include "gradwire/gradwire.h"

namespace {

torch::nn::Sequential make_net() {
  torch::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Linear(16, 128), torch::nn::Tanh(), torch::nn::Linear(128, 128),
                               torch::nn::Tanh(), torch::nn::Linear(128, 1));
}

// The bytes that the optimizer remembers on this rank.
std::size_t state_bytes(torch::optim::Optimizer& optimizer) {
  std::size_t bytes = 0;
  for (const auto& [parameter, state] : optimizer.state()) {
    const auto& adam = static_cast<const torch::optim::AdamParamState&>(*state);
    bytes += adam.exp_avg().nbytes() + adam.exp_avg_sq().nbytes();
  }
  return bytes;
}

struct Training {
  torch::nn::Sequential net = make_net();
  gradwire::DistributedDataParallel<torch::nn::Sequential> ddp{net};
  gradwire::ZeroRedundancyOptimizer optimizer{
      ddp.parameters(), gradwire::optimizer_factory<torch::optim::Adam>(torch::optim::AdamOptions(3e-3))};

  void run(int rank, std::int64_t from, std::int64_t to) {
    for (auto step = from; step < to; ++step) {
      torch::manual_seed(static_cast<std::uint64_t>(1000 * step + rank));  // data of the step and the rank
      const auto x = torch::randn({32, 16});
      optimizer.zero_grad();
      const auto loss = torch::mse_loss(ddp(x), torch::sin(x.sum(1, true) / 4));
      loss.backward();
      optimizer.step();
      if (rank == 0 && step % 50 == 0) std::printf("step %3ld  loss %.4f\n", step, loss.item<double>());
    }
  }
  double norm() const {
    return torch::nn::utils::parameters_to_vector(net->parameters()).to(torch::kDouble).norm().item<double>();
  }
};

void train(int rank, const std::string& file) {
  Training first;
  first.run(rank, 0, 100);
  gradwire::save_checkpoint(file, first.ddp, first.optimizer, {{"step", std::int64_t{100}}});
  first.run(rank, 100, 201);

  std::size_t all = 0;
  for (const auto& parameter : first.ddp.parameters()) all += 2 * parameter.nbytes();
  std::printf("rank %d keeps %zu of %zu bytes of state\n", rank, state_bytes(first.optimizer.local_optimizer()), all);

  Training second;  // as a new run would
  const auto values = gradwire::load_checkpoint(file, second.ddp, second.optimizer);
  second.run(rank, values.at("step").toInt(), 201);
  std::printf("rank %d ends with parameters of norm %.17g, and after the restart of %.17g\n", rank, first.norm(),
              second.norm());
}

}  // namespace

int main() {
  const auto group = gradwire::init_process_group();
  const auto file = std::filesystem::temp_directory_path() / ("gradwire-zero-" + std::to_string(::getppid()));
  train(group->rank(), file);
  if (group->rank() == 0) std::filesystem::remove(file);
  gradwire::destroy_process_group();
}

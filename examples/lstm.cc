// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// An LSTM that continues waves: it sees 40 values of a sine of unknown frequency and phase, and says the next one after
// each. Clips the averaged gradients, as recurrent networks need it.
//
//   gradwire-run -n 2 lstm
#include <torch/torch.h>

#include <cstdio>
#include <numbers>

#include "gradwire/gradwire.h"

namespace {

struct Forecaster : torch::nn::Module {
  Forecaster() {
    register_module("lstm", lstm);
    register_module("last", last);
  }
  // [batch, time, 1] to [batch, time, 1].
  torch::Tensor forward(const torch::Tensor& waves) { return last(std::get<0>(lstm(waves))); }

  torch::nn::LSTM lstm{torch::nn::LSTMOptions(1, 32).batch_first(true)};
  torch::nn::Linear last{32, 1};
};

torch::Tensor draw_waves(std::int64_t count, std::int64_t length) {
  const auto frequency = 0.1 + 0.3 * torch::rand({count, 1});
  const auto phase = 2 * std::numbers::pi * torch::rand({count, 1});
  return torch::sin(frequency * torch::arange(length) + phase).unsqueeze(2);
}

void train(int rank) {
  torch::manual_seed(1);
  Forecaster forecaster;
  gradwire::DdpOptions options;
  options.gradient_as_bucket_view = true;  // gradients live in the buckets: one copy less
  gradwire::DistributedDataParallel ddp(forecaster, options);
  torch::optim::Adam optimizer(ddp.parameters(), 1e-2);
  torch::manual_seed(100 + rank);
  for (int step = 0; step <= 120; ++step) {
    const auto waves = draw_waves(16, 41);
    optimizer.zero_grad();
    const auto loss = torch::mse_loss(ddp(waves.slice(1, 0, 40)), waves.slice(1, 1));
    loss.backward();
    torch::nn::utils::clip_grad_norm_(ddp.parameters(), 1.0);  // the averages, so all ranks clip alike
    optimizer.step();
    if (rank == 0 && step % 20 == 0) std::printf("step %3d  loss %.5f\n", step, loss.item<double>());
  }
  const auto all = torch::nn::utils::parameters_to_vector(forecaster.parameters());
  std::printf("rank %d ends with parameters of norm %.17g\n", rank, all.to(torch::kDouble).norm().item<double>());
}

}  // namespace

int main() {
  const auto group = gradwire::init_process_group();
  train(group->rank());
  gradwire::destroy_process_group();
}

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// convolution_worker STEPS FOLDER   as elastic_worker.cc, with a convolutional net whose batch normalization changes
// buffers before the averages of a step arrive. Writes its parameters, and then its buffers.
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include "tests/elastic/elastic_worker_support.h"

namespace gradwire::testing {
namespace {

struct ConvolutionsImpl : torch::nn::Module {
  ConvolutionsImpl()
      : first(register_module("first", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 6, 3).bias(false)))),
        norm(register_module("norm", torch::nn::BatchNorm2d(6))),
        last(register_module("last", torch::nn::Linear(6, 3))) {}
  at::Tensor forward(const at::Tensor& images) {
    return last(at::relu(norm(first(images))).mean(at::IntArrayRef({2, 3})));
  }
  torch::nn::Conv2d first;
  torch::nn::BatchNorm2d norm;
  torch::nn::Linear last;
};
TORCH_MODULE(Convolutions);

void run(std::int64_t steps, const std::string& folder) {
  at::manual_seed(1);
  WorkerReport report(folder);
  Convolutions net;
  ElasticOptions with_seed;
  with_seed.seed = 5;
  Elastic elastic(with_seed);
  DdpOptions options;
  options.process_group = elastic.group();
  DistributedDataParallel ddp(net, options);
  torch::optim::Adam optimizer(ddp.parameters(), 0.01);
  elastic.add(ddp).add(optimizer);
  const ElasticEnd end = elastic.run(steps, [&](const ElasticStep& at) {
    report.begin_step(at);
    optimizer.zero_grad();
    const at::Tensor images = at::randn({8, 1, 10, 10});  // the seed, the step and the rank decide
    const at::Tensor classes = at::randint(3, {8}, at::TensorOptions(at::kLong));
    torch::nn::functional::cross_entropy(ddp(images), classes).backward();
    optimizer.step();
    report.end_step(at);
  });
  std::vector<at::Tensor> state = net->parameters();
  for (const at::Tensor& buffer : net->buffers()) state.push_back(buffer);
  report.end(end, std::move(state));
}

}  // namespace
}  // namespace gradwire::testing

int main(int argc, char** argv) {
  return gradwire::testing::worker_main("convolution_worker", argc, argv, &gradwire::testing::run);
}

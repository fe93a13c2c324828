// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// diloco_worker STEPS FOLDER   one worker of an elastic DiLoCo job, for elastic_launch_test.cc. Writes its outer
// parameters to FOLDER/final-PID when all steps were counted.
//
// Each step moves each of the worker's parameters by 1, and the outer optimizer takes over the average of what the
// workers have moved. So the outer parameters are the number of steps, whoever takes part, when each exchange counts
// once and averages over the workers that have trained. ELASTIC_OPTIMIZER=streaming: with fragments and overlap, where
// a worker that comes in the midst of a fragment's steps has moved less.
#include <torch/optim/sgd.h>

#include <memory>

#include "gradwire/base/environment.h"
#include "gradwire/optim/diloco.h"
#include "gradwire/optim/post_local_sgd_optimizer.h"
#include "tests/elastic/elastic_worker_support.h"

namespace gradwire::testing {
namespace {

DilocoOptions schedule(const std::shared_ptr<ProcessGroup>& group) {
  DilocoOptions options{.process_group = group, .inner_steps = 24};
  options.outer = optimizer_factory<torch::optim::SGD>(torch::optim::SGDOptions(1));
  if (environment("ELASTIC_OPTIMIZER").value_or("") == "streaming") {
    options.fragments = 3;
    options.overlap = 10;
    options.mixing = 0.5;
  }
  return options;
}

void run(std::int64_t steps, const std::string& folder) {
  WorkerReport report(folder);
  Elastic elastic;
  std::vector<at::Tensor> parameters;
  for (int i = 0; i < 3; ++i) parameters.push_back(at::zeros({1000}).requires_grad_());
  const auto diloco = std::make_shared<DilocoAverager>(parameters, schedule(elastic.group()));
  PostLocalSGDOptimizer optimizer(std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(1)), diloco);
  elastic.add(optimizer);
  const ElasticEnd end = elastic.run(steps, [&](const ElasticStep& at) {
    report.begin_step(at);
    for (at::Tensor& parameter : parameters) parameter.mutable_grad() = -at::ones_like(parameter);
    optimizer.step();
    report.end_step(at);
  });
  report.end(end, diloco->outer_parameters());
}

}  // namespace
}  // namespace gradwire::testing

int main(int argc, char** argv) {
  return gradwire::testing::worker_main("diloco_worker", argc, argv, &gradwire::testing::run);
}

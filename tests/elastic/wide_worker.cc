// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// wide_worker STEPS FOLDER   as elastic_worker.cc, with a model that has much state, at full speed. WIDE_STATE is the
// size of the parameters and of Adam's state together, in MB; WIDE_GRADIENTS are the MB that a step averages: the rest
// of the parameters does not change. WIDE_COMPUTE milliseconds of each step the worker sleeps, as one does whose
// device computes. ELASTIC_HOOK and ELASTIC_FOLLOW are those of elastic_worker.cc. Writes to FOLDER/times-PID when each
// step that counted began and ended: a line for each, with the step and two times of the monotonic clock in
// nanoseconds.
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include <ctime>
#include <fstream>

#include "gradwire/base/environment.h"
#include "gradwire/base/strings.h"
#include "gradwire/hooks/registry.h"
#include "tests/elastic/elastic_worker_support.h"

namespace gradwire::testing {
namespace {

constexpr std::int64_t kWidth = 1024;

std::int64_t now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

std::int64_t number(const char* name) { return std::stoll(environment(name).value()); }

std::int64_t numel_of(const std::vector<at::Tensor>& tensors) {
  std::int64_t numel = 0;
  for (const at::Tensor& tensor : tensors) numel += tensor.numel();
  return numel;
}

torch::optim::AdamParamState moments_of(const at::Tensor& parameter) {
  torch::optim::AdamParamState state;
  state.step(1);
  state.exp_avg(at::full_like(parameter, 0.5));
  state.exp_avg_sq(at::full_like(parameter, 0.25));
  return state;
}

void run(std::int64_t steps, const std::string& folder) {
  at::manual_seed(1);
  WorkerReport report(folder);
  ElasticOptions elastic_options;
  elastic_options.follow = environment("ELASTIC_FOLLOW").has_value();
  elastic_options.seed = 5;
  Elastic elastic(elastic_options);
  torch::nn::Sequential net;
  for (std::int64_t bytes = 0; bytes < number("WIDE_GRADIENTS") * 1'000'000; bytes += 4 * kWidth * (kWidth + 1))
    net->push_back(torch::nn::Linear(kWidth, kWidth));
  const std::int64_t trained = 12 * numel_of(net->parameters());
  const at::Tensor rest = at::full({(number("WIDE_STATE") * 1'000'000 - trained) / 12}, ::getpid(), at::kFloat);
  net->register_parameter("rest", rest, /*requires_grad=*/false);
  DdpOptions options;
  options.process_group = elastic.group();
  DistributedDataParallel ddp(net, options);
  if (const auto hook = environment("ELASTIC_HOOK")) ddp.register_comm_hook(make_hook(*hook));
  torch::optim::Adam optimizer(ddp.parameters(), 1e-4);
  optimizer.state()[rest.unsafeGetTensorImpl()] = std::make_unique<torch::optim::AdamParamState>(moments_of(rest));
  const timespec compute{0, number("WIDE_COMPUTE") * 1'000'000};
  elastic.add(ddp).add(optimizer);
  std::ofstream times(concat(folder, "/times-", ::getpid()));
  const ElasticEnd end = elastic.run(steps, [&](const ElasticStep& at) {
    const std::int64_t begin = now();
    report.begin_step(at);
    optimizer.zero_grad();
    ::nanosleep(&compute, nullptr);
    ddp(at::randn({4, kWidth})).square().mean().backward();  // the seed, the step and the rank decide
    optimizer.step();
    report.end_step(at);
    if (!at.follows) times << at.step << " " << begin << " " << now() << "\n" << std::flush;
  });
  report.end(end, {net->parameters().front()});
}

}  // namespace
}  // namespace gradwire::testing

int main(int argc, char** argv) {
  return gradwire::testing::worker_main("wide_worker", argc, argv, &gradwire::testing::run);
}

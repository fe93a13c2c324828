// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// elastic_worker STEPS FOLDER   one member of an elastic job, for elastic_launch_test.cc and elastic_hosts_test.cc.
// ELASTIC_HOOK, ELASTIC_BACKEND and ELASTIC_OPTIMIZER in the environment choose what it trains with.
// Tells in FOLDER/page where it is, and writes its parameters to FOLDER/final-PID when all steps were counted.
#include <memory>
#include <utility>
#include <vector>

#include "gradwire/base/environment.h"
#include "gradwire/elastic/elastic_test_support.h"
#include "gradwire/hooks/registry.h"
#include "gradwire/optim/zero_redundancy_optimizer.h"
#include "tests/elastic/elastic_worker_support.h"

namespace gradwire::testing {
namespace {

// ELASTIC_OPTIMIZER=zero: Adam, whose state the members share out; else plain SGD.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(std::vector<at::Tensor> parameters, const Elastic& elastic) {
  if (environment("ELASTIC_OPTIMIZER").value_or("") != "zero")
    return std::make_unique<torch::optim::SGD>(std::move(parameters), sgd());
  return std::make_unique<ZeroRedundancyOptimizer>(std::move(parameters),
                                                   optimizer_factory<torch::optim::Adam>(adam_options()),
                                                   ZeroOptions{.process_group = elastic.group()});
}

void run(std::int64_t steps, const std::string& folder) {
  WorkerReport report(folder);
  ElasticOptions elastic_options;
  elastic_options.backend = environment("ELASTIC_BACKEND").value_or("");
  Elastic elastic(elastic_options);
  DdpOptions options;
  options.process_group = elastic.group();
  Mlp net;
  DistributedDataParallel ddp(net, options);
  if (const auto hook = environment("ELASTIC_HOOK")) ddp.register_comm_hook(make_hook(*hook));
  const auto optimizer = make_optimizer(ddp.parameters(), elastic);
  elastic.add(ddp).add(*optimizer);
  const ElasticEnd end = elastic.run(steps, [&](const ElasticStep& at) {
    report.begin_step(at);
    optimizer->zero_grad();
    loss_of(ddp(samples(at))).backward();
    optimizer->step();
    report.end_step(at);
  });
  report.end(end, net->parameters());
}

}  // namespace
}  // namespace gradwire::testing

int main(int argc, char** argv) {
  return gradwire::testing::worker_main("elastic_worker", argc, argv, &gradwire::testing::run);
}

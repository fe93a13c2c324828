// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// elastic_worker STEPS FOLDER   one member of an elastic job, for elastic_launch_test.cc and elastic_hosts_test.cc.
// Tells in FOLDER/page where it is, and writes its parameters to FOLDER/final-PID when all steps were counted.
#include <ATen/Parallel.h>

#include <cstdio>
#include <cstdlib>

#include "gradwire/base/environment.h"
#include "gradwire/elastic/elastic_test_support.h"
#include "gradwire/hooks/registry.h"
#include "tests/elastic/elastic_worker_support.h"

namespace gradwire::testing {
namespace {

int run(std::int64_t steps, const std::string& folder) {
  at::set_num_threads(1);
  WorkerReport report(folder);
  ElasticOptions elastic_options;
  elastic_options.backend = environment("ELASTIC_BACKEND").value_or("");
  Elastic elastic(elastic_options);
  DdpOptions options;
  options.process_group = elastic.group();
  Mlp net;
  DistributedDataParallel ddp(net, options);
  if (const auto hook = environment("ELASTIC_HOOK")) ddp.register_comm_hook(make_hook(*hook));
  torch::optim::SGD optimizer(ddp.parameters(), sgd());
  elastic.add(ddp).add(optimizer);
  const ElasticEnd end = elastic.run(steps, [&](const ElasticStep& at) {
    report.begin_step(at);
    optimizer.zero_grad();
    loss_of(ddp(samples(at))).backward();
    optimizer.step();
    report.end_step(at);
  });
  report.end(end, net->parameters());
  return 0;
}

}  // namespace
}  // namespace gradwire::testing

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    return gradwire::testing::run(std::atoll(argv[1]), argv[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "elastic_worker: %s\n", error.what());
    return 1;
  }
}

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// elastic_worker STEPS FOLDER   one member of an elastic job, for elastic_launch_test.cc. Tells in FOLDER/page where it
// is, and writes its parameters to FOLDER/final-PID when all steps were counted.
#include <ATen/Parallel.h>
#include <poll.h>
#include <torch/serialize.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "gradwire/base/environment.h"
#include "gradwire/elastic/elastic_test_support.h"
#include "tests/elastic/elastic_page.h"

namespace gradwire::testing {
namespace {

void tell(const SharedElasticPage& page, const ElasticStep& at, std::int64_t& epoch) {
  if (at.epoch == epoch) return;
  epoch = at.epoch;
  const std::int64_t index = page->entry_count++;
  ElasticPage::Entry& entry = page->entries.at(static_cast<std::size_t>(index));
  entry.epoch = at.epoch;
  entry.step = at.step;
  entry.size = at.size;
  entry.nanoseconds = std::chrono::steady_clock::now().time_since_epoch().count();
  entry.pid = ::getpid();
}

int run(std::int64_t steps, const std::string& folder) {
  at::set_num_threads(1);
  const SharedElasticPage page(folder + "/page");
  ElasticOptions elastic_options;
  elastic_options.backend = environment("ELASTIC_BACKEND").value_or("");
  Elastic elastic(elastic_options);
  DdpOptions options;
  options.process_group = elastic.group();
  Mlp net;
  DistributedDataParallel ddp(net, options);
  torch::optim::SGD optimizer(ddp.parameters(), sgd());
  elastic.add(ddp).add(optimizer);
  std::int64_t epoch = 0;
  const ElasticEnd end = elastic.run(steps, [&](const ElasticStep& at) {
    tell(page, at, epoch);
    while (at.step >= page->budget) ::poll(nullptr, 0, 1);
    optimizer.zero_grad();
    loss_of(ddp(samples(at))).backward();
    optimizer.step();
    page->newest_step = at.step;
  });
  if (end == ElasticEnd::left) std::puts("left in good order");
  if (end != ElasticEnd::finished) return 0;
  std::vector<at::Tensor> parameters;
  for (const at::Tensor& parameter : net->parameters()) parameters.push_back(parameter.detach());
  torch::save(parameters, folder + "/unfinished-" + std::to_string(::getpid()));
  std::filesystem::rename(folder + "/unfinished-" + std::to_string(::getpid()),
                          folder + "/final-" + std::to_string(::getpid()));
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

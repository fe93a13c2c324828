// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// elastic_worker STEPS FOLDER   one member of an elastic job, for elastic_launch_test.cc and elastic_hosts_test.cc.
// ELASTIC_HOOK, ELASTIC_BACKEND and ELASTIC_OPTIMIZER in the environment choose what it trains with. With ELASTIC_SLOW
// the clock counts work: the worker that is the first to make FOLDER/slow does three times the work of the others.
// ELASTIC_STATE adds so many MB of state that no step changes: a third in a parameter, the rest in a tensor of a state
// of the user's. ELASTIC_FOLLOW lets newcomers follow. ELASTIC_TIMEOUT is ElasticOptions::timeout in milliseconds.
// With ELASTIC_BLOCK=STEP, the worker that is the first to make FOLDER/blocked writes its process number there before
// that step, and then reads for ever from a pipe into which nobody writes.
// Tells in FOLDER/page where it is, and writes its parameters to FOLDER/final-PID when all steps were counted.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "gradwire/base/environment.h"
#include "gradwire/base/os_handles.h"
#include "gradwire/elastic/elastic_test_support.h"
#include "gradwire/hooks/registry.h"
#include "gradwire/optim/zero_redundancy_optimizer.h"
#include "gradwire/process_group/wait_clock_internal.h"
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

std::int64_t nanoseconds_of_work = 0;
std::int64_t counted_work() noexcept { return nanoseconds_of_work; }

// How much work this worker does in a step.
std::int64_t work_of_a_step(const std::string& folder) {
  if (!environment("ELASTIC_SLOW")) return 0;
  internal::read_wait_clocks_with(&counted_work);
  const UniqueFd first(::open((folder + "/slow").c_str(), O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  return first ? 30'000'000 : 10'000'000;
}

void block_if_asked(std::int64_t step, const std::string& folder) {
  static const auto block = environment("ELASTIC_BLOCK");
  if (!block || step < std::atoll(block->c_str())) return;
  const UniqueFd first(::open((folder + "/blocked").c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600));
  int ends[2];
  if (!first || ::pipe2(ends, O_CLOEXEC) != 0) return;
  ::dprintf(first.get(), "%d\n", ::getpid());
  char byte = 0;
  while (::read(ends[0], &byte, 1) != 1) {
  }
}

// The first process that finds the test's file "few_descriptors" may open one file more.
void limit_descriptors(const std::string& folder) {
  if (::rename((folder + "/few_descriptors").c_str(), (folder + "/had_few_descriptors").c_str()) != 0) return;
  const auto open = std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  const rlimit limit{static_cast<rlim_t>(open), static_cast<rlim_t>(open)};
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) throw std::runtime_error("setrlimit() failed");
}

void run(std::int64_t steps, const std::string& folder) {
  const std::int64_t work = work_of_a_step(folder);
  WorkerReport report(folder);
  ElasticOptions elastic_options;
  elastic_options.backend = environment("ELASTIC_BACKEND").value_or("");
  elastic_options.follow = environment("ELASTIC_FOLLOW").has_value();
  if (const auto timeout = environment("ELASTIC_TIMEOUT"))
    elastic_options.timeout = std::chrono::milliseconds(std::atoll(timeout->c_str()));
  Elastic elastic(elastic_options);
  DdpOptions options;
  options.process_group = elastic.group();
  Mlp net;
  const std::int64_t megabytes = std::atoll(environment("ELASTIC_STATE").value_or("0").c_str());
  if (megabytes > 0)
    net->register_parameter("frozen", at::full({megabytes * 1'000'000 / 12}, ::getpid(), at::kFloat), false);
  at::Tensor user_state = at::full({megabytes * 2'000'000 / 3}, 's', at::kByte);
  DistributedDataParallel ddp(net, options);
  if (const auto hook = environment("ELASTIC_HOOK")) ddp.register_comm_hook(make_hook(*hook));
  const auto optimizer = make_optimizer(ddp.parameters(), elastic);
  elastic.add(ddp).add(*optimizer);
  if (megabytes > 0) {
    elastic.add_state(
        "state", [&] { return StatePart{.tensors = {user_state}}; },
        [&](StatePart part) { user_state = std::move(part.tensors.at(0)); });
  }
  limit_descriptors(folder);
  const ElasticEnd end = elastic.run(steps, [&](const ElasticStep& at) {
    report.begin_step(at);
    nanoseconds_of_work += work;
    block_if_asked(at.step, folder);
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

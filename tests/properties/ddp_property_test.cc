// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// DDP on random models, buckets, hooks, lanes and worlds: the gradients are those of one model that sees what all ranks
// see.
#include <algorithm>

#include "gradwire/base/environment.h"
#include "gradwire/ddp/ddp_test_support.h"
#include "gradwire/hooks/default_hooks.h"
#include "tests/properties/random_model.h"
#include "tests/support/ranks.h"

namespace gradwire::testing {
namespace {

constexpr double kLearningRate = 0.05;

void zero(torch::nn::Module& module, Zero how) {
  if (how != Zero::never) module.zero_grad(how == Zero::to_none);
}

void descend(torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  for (at::Tensor& parameter : module.parameters()) {
    if (parameter.grad().defined()) parameter.sub_(parameter.grad(), kLearningRate);
  }
}

// Runs through the same iterations, with the gradients that all ranks' losses give together.
class WholeBatch {
 public:
  explicit WholeBatch(const Run& run) : run_(run), net_(run) {}

  void iterate(int iteration) {
    const auto at = static_cast<std::size_t>(iteration);
    zero(*net_, run_.zero[at]);
    for (int rank = 0; rank < run_.world; ++rank) {
      const at::Tensor output = net_->forward(run_.input(rank, iteration), rank, iteration);
      (output.square().mean() / run_.world).backward();
    }
  }
  torch::nn::Module& module() { return *net_; }

 private:
  const Run& run_;
  RandomModel net_;
};

void add_hook(DistributedDataParallel<RandomModel>& ddp, const Run& run) {
  if (run.hook == 1) ddp.register_comm_hook(make_allreduce_hook());
  if (run.hook != 2) return;
  HookTraits traits;
  traits.name = "gather and add";
  traits.parallel_safe = run.number % 2 == 0;
  ddp.register_comm_hook(
      [](GradBucket& bucket) {
        const at::Tensor mine = bucket.buffer().clone();
        const at::Tensor all = at::empty({bucket.group().size(), mine.numel()}, mine.options());
        bucket.group().all_gather_into_tensor(all, mine)->wait();
        return all.sum(0).div_(bucket.divisor());
      },
      traits);
}

void expect_like(torch::nn::Module& mine, torch::nn::Module& wanted, bool exact) {
  const auto all = wanted.named_parameters();
  for (const auto& item : mine.named_parameters()) {
    const at::Tensor gradient = item.value().grad(), expected = all[item.key()].grad();
    ASSERT_EQ(gradient.defined(), expected.defined()) << "the gradient of " << item.key();
    if (!gradient.defined()) continue;
    EXPECT_TRUE(at::allclose(gradient, expected, exact ? 1e-6 : 1e-3, exact ? 1e-7 : 1e-4))
        << "the gradient of " << item.key() << " is off by " << (gradient - expected).abs().max().item<double>();
  }
}

void train(const Run& run, int rank, const std::shared_ptr<ProcessGroup>& group) {
  std::ostringstream text;
  text << run;
  SCOPED_TRACE(concat(text.str(), "; rank ", rank));
  DdpOptions options;
  options.process_group = group;
  options.gradient_as_bucket_view = run.view;
  options.lanes = run.local_group ? -1 : run.lanes;
  options.bucket_cap_mb = run.bucket_cap_mb;
  options.find_unused_parameters = run.graph == Graph::found;
  options.static_graph = run.graph == Graph::fixed;
  const bool exact =
      std::all_of(run.steps.begin(), run.steps.end(), [](const Step& step) { return step.dtype == at::kDouble; });
  WholeBatch whole(run);
  RandomModel net(run);
  DistributedDataParallel<RandomModel> ddp(net, options);
  add_hook(ddp, run);
  for (int iteration = 0; iteration < run.iterations; ++iteration) {
    SCOPED_TRACE(concat("iteration ", iteration));
    const auto at = static_cast<std::size_t>(iteration);
    whole.iterate(iteration);
    zero(*net, run.zero[at]);
    const auto backward = [&] { ddp(run.input(rank, iteration), rank, iteration).square().mean().backward(); };
    if (!run.synchronized[at]) {
      const auto guard = ddp.no_sync();
      backward();
      continue;
    }
    backward();
    expect_like(*net, whole.module(), exact);
    descend(*net);
    descend(whole.module());
  }
}

void expect_runs(std::uint64_t first, std::uint64_t count, const std::string& backend) {
  if (const auto only = environment("GRADWIRE_RANDOM_MODEL")) {
    first = std::stoull(*only);
    count = 1;
  }
  for (std::uint64_t number = first; number < first + count && !::testing::Test::HasFailure(); ++number) {
    const Run run = random_run(number, 1 + static_cast<int>(number % 4));
    if (backend == "shm") {
      test_support::run_ranks("shm", run.world, [&](int rank, const std::shared_ptr<Store>& store) {
        at::set_num_threads(1);
        train(run, rank, make_process_group("shm", store, rank, run.world, std::chrono::minutes(2)));
      });
      continue;
    }
    const std::string error = error_of([&] {
      run_ranks({run.local_group ? "local" : "threads"}, run.world,
                [&](int rank, std::shared_ptr<ProcessGroup> group) { train(run, rank, group); });
    });
    EXPECT_EQ(error, "") << run;
  }
}

// First: its ranks are forked.
TEST(DdpProperties, ManyRandomModelsOnProcesses) { expect_runs(5000, 60, "shm"); }
TEST(DdpProperties, SomeRandomModelsTrainAsOnTheWholeBatch) { expect_runs(1, 40, "threads"); }
TEST(DdpProperties, ManyRandomModelsTrainAsOnTheWholeBatch) { expect_runs(1000, 500, "threads"); }

}  // namespace
}  // namespace gradwire::testing

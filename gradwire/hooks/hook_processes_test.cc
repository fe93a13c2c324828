// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Every hook over shared memory and over Gloo, each rank a process. The test's own process stays clear of autograd,
// which does not survive a fork.
#include "gradwire/hooks/hook_cases_test_support.h"
#include "gradwire/hooks/registry.h"
#include "gradwire/store/prefix_store.h"
#include "tests/support/named_group.h"
#include "tests/support/ranks.h"

namespace gradwire::testing::hook_processes_test {
namespace {

void run_all_hooks(const std::string& backend, int world) {
  test_support::run_ranks(backend, world, [&](int rank, const std::shared_ptr<Store>& store) {
    at::set_num_threads(1);
    const auto group = make_process_group(backend, store, rank, world, std::chrono::seconds(120));
    int turn = 0;
    for (const HookCase& hook : hook_cases()) {
      SCOPED_TRACE(hook.name);
      const Setup setup{backend, turn % 3, turn % 2 == 0};
      ++turn;
      const auto first = zoo_gradients(rank, group, setup, hook.make);
      const auto second = zoo_gradients(rank, group, setup, hook.make);
      expect_zoo_average(first, world, hook.tolerance);
      for (std::size_t i = 0; i < first.size(); ++i) {
        EXPECT_TRUE(same_bits(first[i], second[i])) << "parameter " << i << ", second run";
        if (first[i].numel() == 0) continue;
        at::Tensor of_rank_zero = first[i].contiguous().clone();
        group->broadcast({of_rank_zero})->wait();
        EXPECT_TRUE(of_rank_zero.equal(first[i])) << "parameter " << i;
      }
    }
  });
}

// Over Gloo the pieces of a long bucket are on their way while others are encoded, over shared memory one follows the
// other: nothing of that shows in the result.
TEST(LongBuckets, HaveTheSameBitsOverBothEngines) {
  test_support::run_ranks("shm", 2, [](int rank, const std::shared_ptr<Store>& store) {
    at::set_num_threads(1);
    std::vector<std::shared_ptr<ProcessGroup>> groups;
    for (const char* backend : {"shm", "gloo"}) {
      const auto part = std::make_shared<PrefixStore>(backend, store);
      groups.push_back(make_process_group(backend, part, rank, 2, std::chrono::seconds(120)));
    }
    for (const char* spec : {"int4", "one_bit:exchange=all_gather", "fp8_e4m3:memory=ef21"}) {
      std::vector<at::Tensor> gradients;
      for (const auto& group : groups) {
        torch::manual_seed(3);
        torch::nn::Linear layer(torch::nn::LinearOptions(1600, 1600).bias(false));
        DistributedDataParallel ddp(layer, options_for({group->name(), 1, true}, group));
        ddp.register_comm_hook(make_hook(spec));
        for (int step = 0; step < 2; ++step) {
          ddp.zero_grad();
          ddp(at::arange(3200).view({2, 1600}).remainder(7 + rank + step).to(at::kFloat)).pow(2).sum().backward();
        }
        gradients.push_back(layer->weight.grad().clone());
      }
      EXPECT_TRUE(same_bits(gradients[0], gradients[1])) << spec;
    }
  });
}

class HookProcesses : public ::testing::TestWithParam<std::string> {};

TEST_P(HookProcesses, TwoRanks) { run_all_hooks(GetParam(), 2); }

INSTANTIATE_TEST_SUITE_P(Backends, HookProcesses, ::testing::ValuesIn(test_support::process_backends()),
                         test_support::name_case);

TEST(HookProcesses3, ThreeRanksOverSharedMemory) { run_all_hooks("shm", 3); }

}  // namespace
}  // namespace gradwire::testing::hook_processes_test

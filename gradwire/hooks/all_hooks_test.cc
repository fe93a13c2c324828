// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What holds for every hook, over every number of ranks and lanes: parameters of any type and layout get the average,
// all ranks hold the same bits, and a second run gives them again; a group that lacks what the hook needs is refused.
#include <array>

#include "gradwire/hooks/hook_cases_test_support.h"

namespace gradwire::testing::all_hooks_test {
namespace {

class AllHooks : public ::testing::TestWithParam<HookCase> {};
INSTANTIATE_TEST_SUITE_P(Hook, AllHooks, ::testing::ValuesIn(hook_cases()),
                         [](const auto& info) { return info.param.name; });

std::vector<std::vector<at::Tensor>> gradients_of_ranks(const Setup& setup, int world, const MakeHook& make) {
  std::vector<std::vector<at::Tensor>> gradients(static_cast<std::size_t>(world));
  run_ranks(setup, world, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    gradients[static_cast<std::size_t>(rank)] = zoo_gradients(rank, group, setup, make);
  });
  return gradients;
}

TEST_P(AllHooks, RanksGetTheAverageAndTheSameBits) {
  for (const int world : {1, 2, 3, 4}) {
    for (const int lanes : {-1, 0, 1, 2}) {
      const gradwire::testing::Setup setup{lanes < 0 ? "local" : "threads", lanes, (world + lanes) % 2 == 0};
      SCOPED_TRACE(concat(world, " ranks over ", setup.group, ", ", lanes, " lanes"));
      if (GetParam().all_to_all && setup.group == "local" && world > 1) {
        const std::string error = error_of([&] { (void)gradients_of_ranks(setup, world, GetParam().make); });
        EXPECT_NE(error.find("does not support all_to_all"), std::string::npos) << error;
        continue;
      }
      const auto first = gradients_of_ranks(setup, world, GetParam().make);
      const auto second = gradients_of_ranks(setup, world, GetParam().make);
      expect_zoo_average(first[0], world, GetParam().tolerance);
      for (std::size_t i = 0; i < first[0].size(); ++i) {
        for (const auto& rank : first) EXPECT_TRUE(same_bits(rank[i], first[0][i])) << "parameter " << i;
        EXPECT_TRUE(same_bits(second[0][i], first[0][i])) << "parameter " << i << ", second run";
      }
    }
  }
}

// Ranks that have run out of data take part with zeros, and sums are divided by those left.
TEST_P(AllHooks, InAJoinTheAverageIsThatOfTheRanksLeft) {
  constexpr std::array<int, 3> kSteps{1, 3, 2};
  std::vector<std::vector<at::Tensor>> ends(3);
  run_ranks({"threads"}, 3, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    Zoo zoo;
    auto options = options_for({"threads", 2, true}, group);
    options.bucket_cap_mb = 1e-6;
    DistributedDataParallel ddp(zoo, options);
    ddp.register_comm_hook(GetParam().make(group));
    {
      Join join = ddp.join({.divide_by_initial_world_size = false});
      for (int step = 0; step < kSteps[static_cast<std::size_t>(rank)]; ++step) {
        ddp.zero_grad();
        ddp(rank, step).backward();
      }
    }
    ends[static_cast<std::size_t>(rank)] = gradients_of(*zoo);
  });
  const auto expected = Zoo()->weights(1, 2);  // rank 1 was alone in the last step
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(at::allclose(ends[0][i].to(at::kDouble), expected[i], 0, 3 * GetParam().tolerance))
        << "parameter " << i;
    for (const auto& rank : ends) EXPECT_TRUE(same_bits(rank[i], ends[0][i])) << "parameter " << i;
  }
}

}  // namespace
}  // namespace gradwire::testing::all_hooks_test

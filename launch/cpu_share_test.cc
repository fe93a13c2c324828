// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Tests the shares of cores: their properties hold for all small numbers of cores and ranks.
#include "launch/cpu_share.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

namespace gradwire::launch {
namespace {

std::vector<int> machine(int cores) {
  std::vector<int> cpus(cores);
  std::iota(cpus.begin(), cpus.end(), 0);
  for (auto& cpu : cpus) cpu = 3 * cpu + 1;  // a container's cores need not begin at 0 nor be neighbours
  return cpus;
}

TEST(CpuShare, EveryCoreIsUsedOnceWhenThereAreEnough) {
  for (int cores = 1; cores <= 70; ++cores) {
    for (int ranks = 1; ranks <= std::min(cores, 64); ++ranks) {
      std::vector<int> dealt;
      std::size_t fewest = 1000;
      std::size_t most = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const auto share = share_of_rank(machine(cores), rank, ranks);
        fewest = std::min(fewest, share.size());
        most = std::max(most, share.size());
        dealt.insert(dealt.end(), share.begin(), share.end());
      }
      EXPECT_EQ(dealt, machine(cores)) << cores << " cores, " << ranks << " ranks";
      EXPECT_GE(fewest, 1U);
      EXPECT_LE(most - fewest, 1U);
    }
  }
}

TEST(CpuShare, MoreRanksThanCoresShareEvenly) {
  for (int cores = 1; cores <= 20; ++cores) {
    for (int ranks = cores + 1; ranks <= 64; ++ranks) {
      std::map<int, int> load;
      for (int rank = 0; rank < ranks; ++rank) {
        const auto share = share_of_rank(machine(cores), rank, ranks);
        ASSERT_EQ(share.size(), 1U);
        ++load[share[0]];
      }
      EXPECT_EQ(static_cast<int>(load.size()), cores) << "no core stays idle";
      const auto [low, high] =
          std::minmax_element(load.begin(), load.end(), [](auto& a, auto& b) { return a.second < b.second; });
      EXPECT_LE(high->second - low->second, 1);
    }
  }
}

TEST(CpuShare, ThreadsAreAtLeastOne) {
  EXPECT_EQ(threads_per_rank(machine(8), 3), 2);
  EXPECT_EQ(threads_per_rank(machine(2), 5), 1);
}

}  // namespace
}  // namespace gradwire::launch

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A rank that dies in split(). Proves: the ranks of its new group name it, in the numbers of the group that was split,
// and do not wait for their timeout; the other new group is made.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <chrono>
#include <limits>

#include "gradwire/base/error.h"
#include "gradwire/process_group/deadly_store_test_support.h"
#include "gradwire/process_group/init.h"
#include "tests/support/ranks.h"

namespace gradwire::split_failure_test {
namespace {

// The groups' timeout, which nothing here may wait for.
constexpr Milliseconds kLong = std::chrono::minutes(5);

TEST(SplitFailure, ARankThatDiesOnItsWayToTheNewGroupIsNamed) {
  constexpr int kSize = 5;
  constexpr int kVictim = 3;
  const auto began = std::chrono::steady_clock::now();
  const auto ends = test_support::collect_ranks("processes", kSize, [&](int rank, const std::shared_ptr<Store>& store) {
    const auto mine = std::make_shared<test_support::DeadlyStore>(store, std::numeric_limits<int>::max());
    const auto group = make_process_group("shm", mine, rank, kSize, kLong);
    group->barrier()->wait();
    // The first call of the store in split() comes when the ranks have told each other what they ask for.
    if (rank == kVictim) mine->die_at(1);
    try {
      const auto part = group->split(rank % 2);
      EXPECT_EQ(rank % 2, 0) << "rank " << kVictim << " was not missed";
      const at::Tensor sum = at::ones({1});
      part->all_reduce({sum})->wait();
      EXPECT_EQ(sum.item<float>(), 3);
    } catch (const PeerError& error) {
      EXPECT_EQ(rank % 2, 1) << error.what();
      EXPECT_EQ(error.peers(), std::vector<int>{kVictim}) << error.what();
    }
  });
  for (int rank = 0; rank < kSize; ++rank) {
    const auto& end = ends[static_cast<std::size_t>(rank)];
    EXPECT_EQ(end.failed, rank == kVictim) << "rank " << rank << ": " << end.message;
  }
  EXPECT_LT(std::chrono::steady_clock::now() - began, kLong);
}

// At each call of the store that new_group() makes.
TEST(NewGroupFailure, ARankThatDiesOnItsWayToTheNewGroupIsNamed) {
  constexpr int kSize = 3;
  constexpr int kVictim = 1;
  for (const char* const backend : {"shm", "gloo"}) {
    bool died = true;
    for (int call = 1; died && call < 100; call += call < 12 ? 1 : 7) {
      const auto ends =
          test_support::collect_ranks("processes", kSize, [&](int rank, const std::shared_ptr<Store>& store) {
            const auto mine = std::make_shared<test_support::DeadlyStore>(store, std::numeric_limits<int>::max());
            InitOptions options;
            options.backend = "shm";
            options.store = mine;
            options.rank = rank;
            options.world_size = kSize;
            options.timeout = kLong;
            init_process_group(options)->barrier()->wait();
            if (rank == kVictim) mine->die_at(call);
            try {
              const auto group = new_group({}, backend);
              group->barrier()->wait();
              if (rank == kVictim) ::raise(SIGKILL);  // it has made all its calls
              group->barrier()->wait();
              ADD_FAILURE() << "rank " << kVictim << " was not missed";
            } catch (const PeerError& error) {
              EXPECT_EQ(error.peers(), std::vector<int>{kVictim}) << error.what();
            }
          });
      for (int rank = 0; rank < kSize; ++rank) {
        const auto& end = ends[static_cast<std::size_t>(rank)];
        EXPECT_EQ(end.failed, rank == kVictim)
            << backend << ", call " << call << ", rank " << rank << ": " << end.message;
      }
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace gradwire::split_failure_test

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A group whose ranks change keeps its pointer, and so do its duplicates; DDP goes on over it.
#include "gradwire/elastic/elastic_group.h"

#include <gtest/gtest.h>

#include "gradwire/ddp/ddp_test_support.h"

namespace gradwire::elastic_group_test {
namespace {

using namespace gradwire::testing;

const Setup kThreads{"threads"};

at::Tensor sum_of_ones(ProcessGroup& group) {
  const at::Tensor tensor = at::ones({3});
  group.all_reduce({tensor})->wait();
  return tensor;
}

TEST(ElasticGroupTest, BeginsAsAGroupOfOne) {
  ElasticGroup group;
  EXPECT_EQ(group.size(), 1);
  EXPECT_EQ(group.rank(), 0);
  EXPECT_EQ(sum_of_ones(group).sum().item<float>(), 3);
}

TEST(ElasticGroupTest, DuplicatesGoAlong) {
  run_ranks(kThreads, 3, [](int rank, std::shared_ptr<ProcessGroup> three) {
    const auto group = std::make_shared<ElasticGroup>();
    const auto first = group->dup();
    const auto nested = first->dup();
    const auto second = group->dup();
    { const auto dropped = group->dup(); }
    group->move_to(three);
    for (const auto& each : std::vector<std::shared_ptr<ProcessGroup>>{group, first, nested, second}) {
      EXPECT_EQ(each->size(), 3);
      EXPECT_EQ(each->rank(), rank);
      EXPECT_EQ(sum_of_ones(*each).sum().item<float>(), 9);
    }
    // Two ranks go on without the third.
    const auto two = three->split(rank == 2 ? -1 : 0);
    if (rank == 2) return group->move_out();
    group->move_to(two);
    EXPECT_EQ(sum_of_ones(*second).sum().item<float>(), 6);
    EXPECT_EQ(sum_of_ones(*nested).sum().item<float>(), 6);
    EXPECT_EQ(group->size(), 2);
  });
}

TEST(ElasticGroupTest, OtherDuplicatesOnARankAreAMismatch) {
  run_ranks(kThreads, 2, [](int rank, std::shared_ptr<ProcessGroup> two) {
    const auto group = std::make_shared<ElasticGroup>();
    std::shared_ptr<ProcessGroup> only_here;
    if (rank == 1) only_here = group->dup();
    EXPECT_THROW(group->move_to(two), MismatchError);
  });
}

TEST(ElasticGroupTest, AnErrorEndsTheEpochAndNotTheGroup) {
  run_ranks(kThreads, 2, [](int rank, std::shared_ptr<ProcessGroup> two) {
    const auto group = std::make_shared<ElasticGroup>();
    const auto next = two->dup();
    group->move_to(next->dup());
    if (rank == 0) {
      group->abort("on purpose");
      EXPECT_THROW(group->barrier()->wait(), AbortedError);
    } else {
      EXPECT_THROW(group->barrier()->wait(), PeerError);
      EXPECT_THROW(group->barrier()->wait(), PeerError);
    }
    group->move_to(next);
    EXPECT_EQ(sum_of_ones(*group).sum().item<float>(), 6);
  });
}

// The gradients of `ddp` are the averages over `size` ranks of gradients that depend on the rank.
template <class Ddp>
void expect_averages(Ddp& ddp, int rank, int size) {
  ddp.zero_grad();
  ddp(at::full({2, 8}, 1.0 + rank)).sum().backward();
  std::vector<at::Tensor> expected;
  for (int other = 0; other < size; ++other) {
    Mlp alone;
    alone->forward(at::full({2, 8}, 1.0 + other)).sum().backward();
    const auto gradients = gradients_of(*alone);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (other == 0) expected.push_back(at::zeros_like(gradients[i]));
      expected[i].add_(gradients[i], 1.0 / size);
    }
  }
  expect_close(gradients_of(*ddp.module()), expected);
}

class DdpOverElasticGroupTest : public ::testing::TestWithParam<Setup> {};
INSTANTIATE_TEST_SUITE_P(Setups, DdpOverElasticGroupTest,
                         ::testing::Values(Setup{"threads", 0, false}, Setup{"threads", 1, false},
                                           Setup{"threads", 1, true}, Setup{"threads", 3, true}),
                         name_of_setup);

TEST_P(DdpOverElasticGroupTest, AveragesOverTheRanksThatThereAre) {
  run_ranks(GetParam(), 3, [&](int rank, std::shared_ptr<ProcessGroup> three) {
    const auto group = std::make_shared<ElasticGroup>();
    DistributedDataParallel ddp(Mlp(), options_for(GetParam(), group));
    expect_averages(ddp, 0, 1);
    const auto two = three->split(rank == 2 ? -1 : 0);
    const auto all_again = three->split(0);
    ddp.core().leave_group();
    EXPECT_THROW(ddp(at::ones({2, 8})), InvalidArgument);
    group->move_to(three);
    ddp.core().enter_group();
    for (int step = 0; step < 3; ++step) expect_averages(ddp, rank, 3);

    // Rank 2 does not do its part of a step, and is gone; the others' step fails.
    if (rank == 2) {
      group->abort("rank 2 is lost on purpose");
    } else {
      EXPECT_THROW(expect_averages(ddp, rank, 3), Error);
      EXPECT_THROW(ddp(at::ones({2, 8})), Error);
    }
    const auto order = ddp.core().bucket_order();
    ddp.core().leave_group();
    if (rank != 2) {
      group->move_to(two);
      ddp.core().enter_group(order);
      for (int step = 0; step < 3; ++step) expect_averages(ddp, rank, 2);
      EXPECT_EQ(ddp.core().bucket_order(), order);
      ddp.core().leave_group();
    }
    group->move_to(all_again);
    ddp.core().enter_group();
    for (int step = 0; step < 3; ++step) expect_averages(ddp, rank, 3);
  });
}

}  // namespace
}  // namespace gradwire::elastic_group_test

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A group whose ranks change keeps its pointer, and so do its duplicates; DDP goes on over it.
#include "gradwire/elastic/elastic_group.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "gradwire/ddp/ddp_test_support.h"
#include "gradwire/ddp/first_rank_memory.h"
#include "gradwire/ddp/hook_state.h"
#include "gradwire/hooks/hook_test_support.h"
#include "gradwire/hooks/registry.h"
#include "gradwire/observe/flight_recorder.h"
#include "gradwire/observe/flight_table.h"
#include "gradwire/process_group/hybrid/hosts_of.h"
#include "gradwire/process_group/network_payload.h"
#include "tests/support/on_hosts.h"

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

// Its ranks at its first call need not be those of its later ones.
TEST(ElasticGroupTest, TheFlightRecorderTellsItFromOtherGroups) {
  ElasticGroup group;
  group.set_group_name("recorded");
  sum_of_ones(group);
  const auto table = observe::read_flight_memory(observe::flight_memory());
  ASSERT_TRUE(table);
  const auto recorded = std::find_if(table->groups.begin(), table->groups.end(),
                                     [](const observe::GroupTable& each) { return each.name == "recorded"; });
  ASSERT_NE(recorded, table->groups.end());
  EXPECT_EQ(recorded->backend, observe::kChangingRanks);
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

// What the hook makes of four gradients of this rank over `group`.
Tensors averages_of(CommHook& hook, ProcessGroup& group) {
  Tensors averages;
  for (std::uint32_t step = 0; step < 4; ++step) {
    GradBucket bucket = bucket_of(random_tensor({3000}, 10 * group.rank() + static_cast<int>(step)), group, step);
    averages.push_back(tensor_of(*hook.run(bucket)).clone());
  }
  return averages;
}

// A hook that compresses runs between hosts, over a group whose ranks change too, and remembers what it did not send on
// the first rank of each host alone. Who gives memories when ranks change asks has_memory().
TEST(ElasticGroupTest, HooksRunBetweenHostsAsOverTheGroupOfHosts) {
  run_ranks(kThreads, 4, [](int rank, std::shared_ptr<ProcessGroup> flat) {
    for (const char* spec : {"int4:memory=error_feedback", "power_sgd:start=2,min_rate=0", "one_bit"}) {
      const auto plain_hook = make_hook(spec);
      const auto plain = test_support::on_hosts(flat, "0011");
      const Tensors expected = averages_of(*plain_hook, *plain);
      const auto elastic = std::make_shared<ElasticGroup>();
      const auto hook = make_hook(spec, elastic);
      const auto hosts = test_support::on_hosts(flat, "0011");
      elastic->move_to(hosts);
      EXPECT_EQ(hosts_of(*elastic), hosts);
      const std::uint64_t sent_before = network_payload_bytes(*elastic);
      const Tensors averages = averages_of(*hook, *elastic);
      for (std::size_t step = 0; step < expected.size(); ++step)
        EXPECT_TRUE(same_bits(averages[step], expected[step])) << spec << ", rank " << rank << ", step " << step;
      const bool is_first_of_host = rank % 2 == 0;
      EXPECT_EQ(has_memory(*hook, *elastic), is_first_of_host) << spec;
      EXPECT_EQ(!local_part(hook->state_dict()).empty(), is_first_of_host) << spec;
      const std::uint64_t sent = network_payload_bytes(*elastic) - sent_before;
      EXPECT_EQ(sent, network_payload_bytes(*plain)) << spec << ", rank " << rank;
      EXPECT_EQ(sent > 0, is_first_of_host) << spec;
      elastic->move_out();
      EXPECT_EQ(network_payload_bytes(*elastic), sent_before + sent) << "what was sent stays sent";
      flat->barrier()->wait();
    }
  });
}

// With one rank on each host, the bits are the same too, and each rank remembers something.
TEST(ElasticGroupTest, HooksRunOverHostsOfOneRankEach) {
  run_ranks(kThreads, 3, [](int rank, std::shared_ptr<ProcessGroup> flat) {
    const auto plain_hook = make_hook("int4:memory=error_feedback");
    const Tensors expected = averages_of(*plain_hook, *test_support::on_hosts(flat, "012"));
    const auto elastic = std::make_shared<ElasticGroup>();
    const auto hook = make_hook("int4:memory=error_feedback");
    elastic->move_to(test_support::on_hosts(flat, "012"));
    EXPECT_FALSE(elastic->has_hosts());
    const Tensors averages = averages_of(*hook, *elastic);
    for (std::size_t step = 0; step < expected.size(); ++step)
      EXPECT_TRUE(same_bits(averages[step], expected[step])) << "rank " << rank << ", step " << step;
    EXPECT_TRUE(has_memory(*hook, *elastic));
    EXPECT_FALSE(local_part(hook->state_dict()).empty());
    flat->barrier()->wait();
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

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Groups of some of a job's ranks, in another order, several groups at once. For backends whose ranks know more
// processes than their group has.
#include "gradwire/backend/registry.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/store/prefix_store.h"
#include "tests/conformance/conformance.h"

namespace gradwire::testing {
namespace {

class PartGroups : public ConformanceTest {};
INSTANTIATE_TEST_SUITE_P(All, PartGroups,
                         ::testing::Values(World{Kind::threads, 3}, World{Kind::shm, 3}, World{Kind::ucx, 3},
                                           World{Kind::mpi, 3}, World{Kind::mpi, 5}),
                         world_name);

// The group of `members`, which count in that order.
std::unique_ptr<Backend> make_group(const RankContext& context, const std::string& name, int rank, int size) {
  BackendOptions options;
  options.store = std::make_shared<PrefixStore>(name, context.store().clone());
  options.rank = rank;
  options.size = size;
  options.timeout = kGuard;
  return make_backend(context.backend().name(), options);
}

std::int64_t sum(Channel& channel, std::int64_t value) {
  channel.all_reduce(&value, 1, DType::i64, ReduceOp::sum(), guarded());
  return value;
}

TEST_P(PartGroups, CountTheirOwnRanks) {
  run([](RankContext& context) {
    // All but the first rank, backwards.
    const int size = context.size() - 1;
    if (context.rank() == 0) return;
    const int rank = size - context.rank();
    const auto group = make_group(context, "backwards", rank, size);
    EXPECT_EQ(group->rank(), rank);
    std::vector<int> seen(static_cast<std::size_t>(size), -1);
    std::vector<void*> outputs;
    for (int& each : seen) outputs.push_back(&each);
    const int mine = context.rank();
    group->channel().all_gather(&mine, outputs, 1, DType::i32, guarded());
    for (int r = 0; r < size; ++r) EXPECT_EQ(seen[static_cast<std::size_t>(r)], size - r);
    // Whom a receive names, and whom it has heard, is a rank of the group.
    int heard = -1;
    const auto send = group->channel().isend(&mine, sizeof(mine), (rank + 1) % size, 4);
    const auto status = group->channel().irecv(&heard, sizeof(heard), kAnySource, 4)->wait(Deadline::after(kGuard));
    send->wait(Deadline::after(kGuard));
    EXPECT_EQ(status.source, (rank + size - 1) % size);
    EXPECT_EQ(heard, size - status.source);
  });
}

TEST_P(PartGroups, AreIndependentOfEachOtherAndOfTheWhole) {
  run([](RankContext& context) {
    // Ranks 0 and 1, and all but 0: rank 1 is in both. One ends in an error, which the others do not see.
    const int last = context.size() - 1;
    std::unique_ptr<Backend> low, high;
    if (context.rank() <= 1) low = make_group(context, "low", context.rank(), 2);
    if (context.rank() >= 1) high = make_group(context, "high", context.rank() - 1, last);
    if (low != nullptr) {
      EXPECT_EQ(sum(low->channel(), 1), 2);
    }
    if (high != nullptr) {
      EXPECT_EQ(sum(high->channel(), 1), last);
    }
    if (context.rank() == 0) low->channel().abort("enough of it");
    if (context.rank() == 1) {
      expect_contains(expect_throw<PeerError>([&] { low->channel().barrier(guarded()); }), "enough of it");
    }
    if (high != nullptr) {
      EXPECT_EQ(sum(high->channel(), 2), 2 * last);
    }
    low.reset();
    EXPECT_EQ(sum(context.channel(), context.rank()), context.size() * last / 2);
  });
}

}  // namespace
}  // namespace gradwire::testing

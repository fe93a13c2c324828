// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Tests that the resources of a process which outlives many groups do not grow with the number of dead ranks.
#include <gtest/gtest.h>

#include <csignal>
#include <iostream>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "tests/chaos/member.h"
#include "tests/chaos/trigger.h"
#include "tests/support/temporary_folder.h"

namespace gradwire::testing {
namespace {

void sum_until_failure(RankContext& context) {
  const Allocation memory = context.channel().allocate(800'000, guarded());
  auto* const data = reinterpret_cast<float*>(memory.data.get());
  for (;;) context.channel().all_reduce(data, 200'000, DType::f32, ReduceOp::sum(), guarded());
}

void die_in_a_reduction(const World& world, const std::string& store, int generation) {
  const std::unique_ptr<RankContext> context = process_rank(world, 1, store);
  const Trigger trigger("collective.reduce", 3, [] { std::raise(SIGKILL); });
  context->join(generation, kGuard);
  sum_until_failure(*context);
}

TEST(Survivor, OfManyDeathsDoesNotGrow) {
  constexpr int kDeaths = 20;
  const TemporaryFolder folder;
  const std::string store = folder.path() + "/store";
  const World world{Kind::shm, 2};
  ChildProcess survivor("the survivor", [&] {
    const std::unique_ptr<RankContext> context = process_rank(world, 0, store);
    Footprint warm;
    for (int death = 0; death < kDeaths; ++death) {
      context->join(death, kGuard);
      EXPECT_THROW(sum_until_failure(*context), PeerError);
      context->leave();
      if (death == 4) warm = footprint();
    }
    const Footprint last = footprint();
    ChildProcess::note(concat("resident ", warm.resident_kib, " -> ", last.resident_kib, " KiB"));
    EXPECT_EQ(grown_since(warm), "");
    // One leaked world would be a mapping or more a death; one leaked allocation 0.8 MB.
    EXPECT_LT(last.mappings, warm.mappings + kDeaths - 5);
    EXPECT_LT(last.resident_kib, warm.resident_kib + 8 * 1024);
  });
  for (int death = 0; death < kDeaths; ++death) {
    ChildProcess victim(concat("victim ", death), [&] { die_in_a_reduction(world, store, death); });
    const ChildProcess::Ending ending = victim.wait(Deadline::after(kGuard));
    ASSERT_TRUE(ending.ended && !ending.exited && ending.code == SIGKILL) << ending.failures;
  }
  const ChildProcess::Ending ending = survivor.wait(Deadline::after(kGuard));
  std::cout << "survivor of " << kDeaths << " deaths: " << ending.notes;
  survivor.expect_success(Deadline::after(kGuard));
}

}  // namespace
}  // namespace gradwire::testing

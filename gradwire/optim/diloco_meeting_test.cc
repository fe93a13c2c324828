// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What DiLoCo's workers decide in a new group, for each way in which they can stand to each other.
#include "gradwire/optim/diloco_meeting_internal.h"

#include <gtest/gtest.h>

#include "gradwire/base/error.h"

namespace gradwire::internal {
namespace {

constexpr auto kIdle = DilocoPhase::idle;
constexpr auto kBegun = DilocoPhase::begun;
constexpr auto kArrived = DilocoPhase::arrived;

// A worker of one fragment, which began its second exchange at step 20.
WorkerStanding worker(DilocoPhase phase, std::int64_t steps = 20) {
  return {.holds = true,
          .steps = steps,
          .fragments = {{.exchanges = phase == kIdle ? 2 : 1, .begun_at = 20, .phase = phase}}};
}
WorkerStanding newcomer() { return {.holds = false, .steps = 0, .fragments = {{}}}; }

TEST(DilocoMeeting, AnExchangeWithoutAnAverageIsDoneAgainByAll) {
  const DilocoPlan plan = plan_meeting({worker(kBegun), worker(kBegun)}, false);
  EXPECT_TRUE(plan.fragments[0].again);
  EXPECT_EQ(plan.fragments[0].begun_at, 20);
  EXPECT_EQ(plan.fragments[0].share, 1);
  EXPECT_TRUE(plan.receivers.empty());
}

TEST(DilocoMeeting, AnAverageThatSomebodyLacksIsGivenUp) {
  EXPECT_TRUE(plan_meeting({worker(kArrived), worker(kBegun)}, false).fragments[0].again);
  EXPECT_TRUE(plan_meeting({worker(kBegun), worker(kArrived)}, false).fragments[0].again);
}

TEST(DilocoMeeting, AnAverageThatAllHaveCounts) {
  const DilocoPlan plan = plan_meeting({worker(kArrived), worker(kIdle, 23), worker(kArrived)}, false);
  EXPECT_FALSE(plan.fragments[0].again);
  EXPECT_EQ(plan.donor, 1);
  EXPECT_TRUE(plan.receivers.empty());
}

TEST(DilocoMeeting, ANewcomerTakesTheStateAndDoesNotCountInAnExchangeThatIsDoneAgain) {
  const DilocoPlan plan = plan_meeting({newcomer(), worker(kBegun), worker(kBegun), newcomer()}, false);
  EXPECT_EQ(plan.donor, 1);
  EXPECT_EQ(plan.receivers, (std::vector<int>{0, 3}));
  EXPECT_EQ(plan.fragments[0].share, 2);  // the average over four is that over two, times two
  // Nor does one that came before, in an epoch in which the exchange broke too.
  WorkerStanding came_before = worker(kBegun);
  came_before.fragments[0].contributes = false;
  EXPECT_EQ(plan_meeting({worker(kBegun), came_before, newcomer()}, false).fragments[0].share, 3);
  EXPECT_EQ(plan_meeting({came_before}, false).fragments[0].share, 1);  // nobody has a difference
  EXPECT_EQ(plan_meeting({worker(kIdle), newcomer()}, false).fragments[0].share, 1);
}

// With overlap a worker may begin the next exchange before another one has reached that step.
TEST(DilocoMeeting, AWorkerThatHasNotBegunTheExchangeYetCountsInIt) {
  WorkerStanding slower = worker(kIdle, 18);
  slower.fragments[0] = {.exchanges = 1, .begun_at = 10, .phase = kIdle};
  const DilocoPlan plan = plan_meeting({slower, worker(kBegun), newcomer()}, false);
  EXPECT_TRUE(plan.fragments[0].again);
  EXPECT_EQ(plan.donor, 1);
  EXPECT_EQ(plan.receivers, (std::vector<int>{2}));
  EXPECT_EQ(plan.fragments[0].share, 1.5);
}

// The confirmation of averages rules these out; whoever is there all the same does not train on.
TEST(DilocoMeeting, AWorkerWithoutAnAverageThatOthersUsedTakesTheirState) {
  const DilocoPlan plan = plan_meeting({worker(kBegun), worker(kIdle)}, false);
  EXPECT_FALSE(plan.fragments[0].again);
  EXPECT_EQ(plan.donor, 1);
  EXPECT_EQ(plan.receivers, (std::vector<int>{0}));
}

TEST(DilocoMeeting, WithoutAnyStateTheJobEndsUnlessItBegins) {
  EXPECT_EQ(plan_meeting({newcomer(), newcomer()}, false).donor, -1);
  const DilocoPlan plan = plan_meeting({newcomer(), newcomer()}, true);
  EXPECT_EQ(plan.donor, 0);
  EXPECT_EQ(plan.receivers, (std::vector<int>{1}));
}

TEST(DilocoMeeting, OtherOuterParametersAfterTheSameExchangesAreAMismatch) {
  WorkerStanding other = worker(kIdle);
  other.fragments[0].hash = 7;
  EXPECT_THROW(plan_meeting({worker(kIdle), other}, false), MismatchError);
  WorkerStanding before = worker(kArrived);  // before the outer step
  before.fragments[0].hash = 7;
  EXPECT_NO_THROW(plan_meeting({worker(kIdle), before}, false));
  other.holds = false;
  EXPECT_NO_THROW(plan_meeting({worker(kIdle), other}, false));
}

}  // namespace
}  // namespace gradwire::internal

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The conformance suite: GoogleTest tests of the contracts of a class of groups. gradwire's own groups pass the suite.
//
//   #include "gradwire/testing/conformance_suite.h"
//
//   template <>
//   struct gradwire::testing::ConformanceTraits<MyGroup> {        // conformance_traits.h
//     static Capabilities capabilities() {
//       Capabilities can;
//       can.duplicates = false;                                   // MyGroup has no dup()
//       return can;
//     }
//     static std::vector<int> worlds() { return {1, 2, 3}; }
//     static void run(int size, const GroupBody& body) {
//       MyWorld world(size);
//       run_ranks_as_threads(size, [&](int rank) { return std::make_shared<MyGroup>(world, rank, size); }, body);
//     }
//   };
//
//   namespace gradwire::testing {                                 // GoogleTest requires the suite's namespace
//   INSTANTIATE_TYPED_TEST_SUITE_P(Mine, ConformanceSuite, MyGroup);
//   }
//
// Link with gradwire::gradwire and GTest::gtest_main. The type in the list may be any type that has traits, also a
// struct that stands for a wrapped MyGroup. If run() forks processes, this process must not have used autograd before:
// put such types first, or into a program of their own.
#pragma once

#include "gradwire/testing/conformance_collectives.h"
#include "gradwire/testing/conformance_groups.h"
#include "gradwire/testing/conformance_traits.h"
#include "gradwire/testing/random_program.h"

namespace gradwire::testing {

// The suite for the traits of `Group`. Each test runs in every world of the traits: a world is a number of ranks.
template <class Group>
class ConformanceSuite : public ::testing::Test {
 protected:
  using Traits = ConformanceTraits<Group>;  // of the class under test

  // Runs `check` on every rank of every world. `ends`: `check` ends the group, so no barrier follows.
  template <class Check>
  void on_ranks(const Check& check, bool ends = false) const {
    for (const int size : Traits::worlds()) {
      Traits::run(size, [&](const std::shared_ptr<ProcessGroup>& group) {
        SCOPED_TRACE(concat("rank ", group->rank(), " of ", size));
        check(group);
        if (!ends) group->barrier()->wait();
      });
    }
  }
  // The same for a check that takes the group and its capabilities.
  using Call = void (*)(ProcessGroup&, const Capabilities&);
  void on_ranks(Call check) const {
    on_ranks([&](const std::shared_ptr<ProcessGroup>& group) { check(*group, Traits::capabilities()); });
  }
  using GroupCall = void (*)(const std::shared_ptr<ProcessGroup>&, const Capabilities&);
  void on_ranks(GroupCall check, bool ends = false) const {
    on_ranks([&](const std::shared_ptr<ProcessGroup>& group) { check(group, Traits::capabilities()); }, ends);
  }
};

TYPED_TEST_SUITE_P(ConformanceSuite);

TYPED_TEST_P(ConformanceSuite, KnowsItsRankAndSize) {
  for (const int size : ConformanceTraits<TypeParam>::worlds()) {
    ConformanceTraits<TypeParam>::run(
        size, [&](const std::shared_ptr<ProcessGroup>& group) { conformance::expect_rank_and_size(*group, size); });
  }
}
TYPED_TEST_P(ConformanceSuite, BroadcastBringsTheRootsValues) { this->on_ranks(conformance::broadcast); }
TYPED_TEST_P(ConformanceSuite, AllReduceIsTheSumOfAllRanks) { this->on_ranks(conformance::all_reduce); }
TYPED_TEST_P(ConformanceSuite, AllReduceKnowsItsOperations) { this->on_ranks(conformance::all_reduce_operations); }
TYPED_TEST_P(ConformanceSuite, SeveralTensorsInOneCall) { this->on_ranks(conformance::several_tensors); }
TYPED_TEST_P(ConformanceSuite, ReduceReachesTheRootAlone) { this->on_ranks(conformance::reduce); }
TYPED_TEST_P(ConformanceSuite, AllGatherBringsEveryRanksValues) { this->on_ranks(conformance::all_gather); }
TYPED_TEST_P(ConformanceSuite, GatherAndScatterAreInverse) { this->on_ranks(conformance::gather_and_scatter); }
TYPED_TEST_P(ConformanceSuite, ReduceScatterIsAPartOfTheSum) { this->on_ranks(conformance::reduce_scatter); }
TYPED_TEST_P(ConformanceSuite, AllToAllTransposes) { this->on_ranks(conformance::all_to_all); }
TYPED_TEST_P(ConformanceSuite, CoalescedFormsAreThePlainOnes) { this->on_ranks(conformance::coalesced); }
TYPED_TEST_P(ConformanceSuite, AutogradDoesNotSeeCollectives) {
  this->on_ranks([](const auto& group) { conformance::autograd_does_not_see(*group); });
}
TYPED_TEST_P(ConformanceSuite, ManyAsynchronousCallsKeepTheirOrder) { this->on_ranks(conformance::order_of_calls); }
TYPED_TEST_P(ConformanceSuite, AllocatedMemoryIsZeroedAndReduces) {
  this->on_ranks([](const auto& group) { conformance::allocated_memory(*group); });
}
TYPED_TEST_P(ConformanceSuite, WorksMayBeWaitedForAgainAndAfterTheirGroup) {
  this->on_ranks([](const auto& group) { conformance::works_may_be_waited_for_again(group); });
}
TYPED_TEST_P(ConformanceSuite, CallbacksMayStartCollectivesAndWait) { this->on_ranks(conformance::callbacks_may_wait); }
TYPED_TEST_P(ConformanceSuite, DuplicatesHaveSequencesOfTheirOwn) {
  this->on_ranks(conformance::duplicates_have_sequences_of_their_own);
}
TYPED_TEST_P(ConformanceSuite, SplitOrdersByKeyAndLeavesOutWhoAsks) {
  this->on_ranks(conformance::splits_are_ordered_by_key);
}
TYPED_TEST_P(ConformanceSuite, MessagesGoAround) { this->on_ranks(conformance::messages_go_around); }
TYPED_TEST_P(ConformanceSuite, MessagesAreMatchedByTagAndNeverWaitForCollectives) {
  this->on_ranks(conformance::messages_are_matched_by_tag_and_never_wait_for_collectives);
}
TYPED_TEST_P(ConformanceSuite, ReceivesFromAnySource) { this->on_ranks(conformance::receives_from_any_source); }
TYPED_TEST_P(ConformanceSuite, RanksThatDisagreeSeeAMismatch) {
  this->on_ranks(conformance::ranks_that_disagree_see_a_mismatch, true);
}
TYPED_TEST_P(ConformanceSuite, AMissedDeadlineIsATimeout) {
  this->on_ranks(conformance::a_missed_deadline_is_a_timeout, true);
}
TYPED_TEST_P(ConformanceSuite, AbortTellsEverybodyWhy) { this->on_ranks(conformance::abort_tells_everybody_why, true); }
TYPED_TEST_P(ConformanceSuite, ShutdownEndsItWell) {
  this->on_ranks([](const auto& group) { conformance::shutdown_ends_it_well(group); }, true);
}
TYPED_TEST_P(ConformanceSuite, DdpAveragesGradients) {
  this->on_ranks([](const auto& group) { conformance::ddp_averages_gradients(group); });
}
TYPED_TEST_P(ConformanceSuite, RandomProgramsGiveWhatTheyShould) { run_random_programs<TypeParam>(1, 8); }

REGISTER_TYPED_TEST_SUITE_P(ConformanceSuite, KnowsItsRankAndSize, BroadcastBringsTheRootsValues,
                            AllReduceIsTheSumOfAllRanks, AllReduceKnowsItsOperations, SeveralTensorsInOneCall,
                            ReduceReachesTheRootAlone, AllGatherBringsEveryRanksValues, GatherAndScatterAreInverse,
                            ReduceScatterIsAPartOfTheSum, AllToAllTransposes, CoalescedFormsAreThePlainOnes,
                            AutogradDoesNotSeeCollectives, ManyAsynchronousCallsKeepTheirOrder,
                            AllocatedMemoryIsZeroedAndReduces, WorksMayBeWaitedForAgainAndAfterTheirGroup,
                            CallbacksMayStartCollectivesAndWait, DuplicatesHaveSequencesOfTheirOwn,
                            SplitOrdersByKeyAndLeavesOutWhoAsks, MessagesGoAround,
                            MessagesAreMatchedByTagAndNeverWaitForCollectives, ReceivesFromAnySource,
                            RanksThatDisagreeSeeAMismatch, AMissedDeadlineIsATimeout, AbortTellsEverybodyWhy,
                            ShutdownEndsItWell, DdpAveragesGradients, RandomProgramsGiveWhatTheyShould);

}  // namespace gradwire::testing

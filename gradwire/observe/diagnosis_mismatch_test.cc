// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The decision where ranks make calls that differ, or leave calls out.
#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/base/strings.h"
#include "gradwire/observe/diagnosis.h"
#include "gradwire/observe/diagnosis_test_support.h"

namespace gradwire::observe::diagnosis_test::mismatches {
namespace {

TEST(Diagnosis, AnotherCollectiveShapeDtypeOrRoot) {
  const std::vector<std::pair<Made, FaultClass>> cases = {
      {{.kind = CallKind::all_gather, .line = 99}, FaultClass::other_collective},
      {{.kind = CallKind::barrier, .line = 99}, FaultClass::other_collective},
      {{.count = 1000}, FaultClass::other_shape},
      {{.count = 1000, .line = 99}, FaultClass::other_shape},
      {{.dtype = 3}, FaultClass::other_dtype},
  };
  for (const auto& [made, fault] : cases) {
    for_each_cause([&made = made, &fault = fault](Job& job, int cause) {
      job.others_call(cause, Outcome::mismatch);
      job.call(cause, made, Outcome::mismatch);
      for (int rank = 0; rank < job.size(); ++rank) job.end(rank, 1, rank == 0 ? 0 : 1);
      const Diagnosis found = job.over();
      expect(found, fault, {cause});
      EXPECT_TRUE(found.certain);
      ASSERT_TRUE(found.their_call && found.call);
      EXPECT_EQ(found.their_call->kind, made.kind);
      EXPECT_EQ(found.call->count, 1024U);
    });
  }
  for_each_cause([](Job& job, int cause) {
    for (int rank = 0; rank < job.size(); ++rank) {
      job.call(rank, Job::step_calls()[0], Outcome::good);
      job.call(rank, Job::step_calls()[1], Outcome::good);
    }
    Made word = Job::step_calls()[2];
    job.others_call(cause, Outcome::mismatch, word);
    word.root = 1;
    job.call(cause, word, Outcome::mismatch);
    expect(job.over(), FaultClass::other_root, {cause});
  });
}

// Engines that compare nothing hang, or give wrong numbers.
TEST(Diagnosis, CallsThatDifferAreFoundWithoutAnError) {
  for_each_cause([](Job& job, int cause) {
    job.others_call(cause, Outcome::none);
    job.call(cause, {.kind = CallKind::all_gather, .line = 99}, Outcome::none);
    expect(job.stalled(), FaultClass::other_collective, {cause});
    Job wrong(job.size());
    wrong.others_call(cause, Outcome::good);
    wrong.call(cause, {.count = 17}, Outcome::good);
    expect(wrong.over(), FaultClass::other_shape, {cause});
  });
}

TEST(Diagnosis, ARankThatLeftACallOut) {
  for_each_cause([](Job& job, int cause) {
    job.others_call(cause, Outcome::mismatch);
    job.call(cause, Job::step_calls()[1], Outcome::mismatch);
    const Diagnosis found = job.over();
    expect(found, FaultClass::skipped, {cause});
    EXPECT_NE(job.words(found).find("the cause called all_reduce(1 f32) (call 19 of its group) at train.py:11 (main)"),
              std::string::npos)
        << job.words(found);
  });
}

// Two ranks that differ in their first call: nothing shows which of them is right.
TEST(Diagnosis, WithoutAMajorityAndWithoutAHistoryBothRanksAreNamed) {
  Job job(2);
  for (RankTable& rank : job.ranks) rank.groups[0].calls.clear();
  job.call(0, {}, Outcome::mismatch);
  job.call(1, {.count = 7}, Outcome::mismatch);
  const Diagnosis found = job.over();
  expect(found, FaultClass::other_shape, {0, 1});
  EXPECT_FALSE(found.certain);
  const std::string words = job.words(found);
  EXPECT_NE(words.find("ranks 0, 1 disagree"), std::string::npos) << words;
  EXPECT_EQ(words.find("the cause"), std::string::npos) << words;
}

TEST(Diagnosis, UnevenPartsAreNoMismatch) {
  for (const CallKind kind : {CallKind::all_to_all, CallKind::all_to_all_single, CallKind::reduce_scatter,
                              CallKind::gather, CallKind::all_gather}) {
    Job job(3);
    for (int rank = 0; rank < 3; ++rank) {
      job.call(rank, {.kind = kind, .count = static_cast<std::uint64_t>(rank)}, Outcome::good);
      job.call(rank, {.kind = rank == 0 ? CallKind::send : CallKind::recv, .root = rank == 0 ? 1 : 0}, Outcome::good);
    }
    EXPECT_EQ(job.over().fault, FaultClass::none) << name_of(kind);
  }
}

// A call that was refused communicated nothing, and took no place in the order that ranks share.
TEST(Diagnosis, RefusedCallsTakeNoPlace) {
  for_each_cause([](Job& job, int cause) {
    job.call(cause, {.kind = CallKind::scatter}, Outcome::refused);
    for (int rank = 0; rank < job.size(); ++rank) job.call(rank, {}, Outcome::good);
    EXPECT_EQ(job.over().fault, FaultClass::none);
    // Also when the refused call has left the table.
    auto& calls = job.at(cause).groups[0].calls;
    std::erase_if(calls, [](const CallRow& call) { return call.outcome == Outcome::refused; });
    EXPECT_EQ(job.over().fault, FaultClass::none);
    job.others_call(cause, Outcome::none);
    job.at(cause).process.state = 'R';
    expect(job.stalled(), FaultClass::slow, {cause});
  });
}

// The others wait in a group of DDP, and the rank that left out the backward pass waits for them in the group of the
// loss.
TEST(Diagnosis, OfRanksThatWaitForEachOtherTheOneThatLeftOutACallIsTheCause) {
  for_each_cause([](Job& job, int cause) {
    for (int rank = 0; rank < job.size(); ++rank) job.open(rank, "default.dup1", rank, job.size());
    const Made bucket{.count = 4096, .line = 20};
    const Made loss{.count = 1, .line = 21};
    for (int step = 0; step < kSteps; ++step) {
      for (int rank = 0; rank < job.size(); ++rank) job.call(rank, bucket, Outcome::good, 1);
      for (int rank = 0; rank < job.size(); ++rank) job.call(rank, loss, Outcome::good);
    }
    for (int rank = 0; rank < job.size(); ++rank) {
      if (rank != cause) job.call(rank, bucket, Outcome::none, 1);
    }
    job.call(cause, loss, Outcome::none);
    const Diagnosis found = job.stalled();
    expect(found, FaultClass::skipped, {cause});
    EXPECT_EQ(found.group, "default.dup1");
    EXPECT_EQ(found.call->count, 4096U);
    EXPECT_EQ(found.their_group, "default");
    EXPECT_EQ(found.their_call->count, 1U);
    EXPECT_NE(job.words(found).find("the cause called all_reduce(1 "), std::string::npos) << job.words(found);
  });
}

struct Barriers {
  int between = 0;  // buckets from one barrier to the next
  int count = 0;
};

// A program whose steps average buckets in a group of DDP, with a barrier of all ranks after every so many steps. One
// rank leaves the barrier out at the end of the history.
void leave_out_barrier(Job& job, int cause, const Barriers& barriers) {
  const Made bucket{.count = 4096, .line = 20};
  const Made barrier{.kind = CallKind::barrier, .count = 0, .line = 21};
  for (RankTable& rank : job.ranks) rank.groups.clear();
  for (int rank = 0; rank < job.size(); ++rank) {
    job.open(rank, "default", rank, job.size());
    job.open(rank, "default.dup1", rank, job.size());
  }
  for (int turn = 0; turn <= barriers.count; ++turn) {
    for (int i = 0; i < barriers.between; ++i) {
      for (int rank = 0; rank < job.size(); ++rank) job.call(rank, bucket, Outcome::good, 1);
    }
    for (int rank = 0; rank < job.size() && turn < barriers.count; ++rank) job.call(rank, barrier, Outcome::good);
  }
  for (int rank = 0; rank < job.size(); ++rank) {
    if (rank != cause) job.call(rank, barrier, Outcome::none);
  }
  job.call(cause, bucket, Outcome::none, 1);
  for (RankTable& rank : job.ranks) {
    for (GroupTable& group : rank.groups) {
      constexpr std::size_t kCalls = 256;  // the room of a table
      if (group.calls.size() > kCalls)
        group.calls.erase(group.calls.begin(), group.calls.end() - static_cast<std::ptrdiff_t>(kCalls));
    }
  }
}

TEST(Diagnosis, ABarrierOfEveryFewStepsThatOneRankLeftOut) {
  for (const Barriers barriers : {Barriers{10, 2}, {10, 40}, {70, 1}, {70, 2}, {100, 2}, {100, 9}}) {
    SCOPED_TRACE(concat(barriers.count, " barriers, each after ", barriers.between, " buckets"));
    for_each_cause([&](Job& job, int cause) {
      leave_out_barrier(job, cause, barriers);
      const Diagnosis found = job.stalled();
      expect(found, FaultClass::skipped, {cause});
      EXPECT_TRUE(found.certain);
      EXPECT_EQ(name_of(found.call->kind), "barrier");
    });
  }
}

// Then most ranks are right, and where there are two, the diagnosis blames neither.
TEST(Diagnosis, ABarrierThatWasCalledTooLongAgoForTheTables) {
  for (const Barriers barriers : {Barriers{200, 3}, {254, 3}, {300, 1}, {300, 5}}) {
    SCOPED_TRACE(concat(barriers.count, " barriers, each after ", barriers.between, " buckets"));
    for_each_cause([&](Job& job, int cause) {
      leave_out_barrier(job, cause, barriers);
      const Diagnosis found = job.stalled();
      if (job.size() > 2) return expect(found, FaultClass::skipped, {cause});
      expect(found, FaultClass::deadlock, {0, 1});
      EXPECT_FALSE(found.certain);
    });
  }
}

}  // namespace
}  // namespace gradwire::observe::diagnosis_test::mismatches

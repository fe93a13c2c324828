// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The decision where ranks wait: which one is missed, and who waits for whom.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/base/strings.h"
#include "gradwire/observe/diagnosis.h"
#include "gradwire/observe/diagnosis_test_support.h"

namespace gradwire::observe::diagnosis_test::waits {
namespace {

TEST(Diagnosis, AStoppedASlowAndABlockedRank) {
  for_each_cause([](Job& job, int cause) {
    job.others_call(cause, Outcome::none);
    ProcessView& process = job.at(cause).process;
    process.state = 'T';
    expect(job.stalled(), FaultClass::stopped, {cause});
    process.state = 'R';
    expect(job.stalled(), FaultClass::slow, {cause});
    process.state = 'S';
    process.busy = 0.9;
    expect(job.stalled(), FaultClass::slow, {cause});
    process.busy = 0.01;
    process.system_call = "read";
    const Diagnosis found = job.stalled();
    expect(found, FaultClass::blocked, {cause});
    EXPECT_NE(explain(found, job.ranks, {.now = job.clock}).find("its process waits in read()"), std::string::npos);
  });
}

// A thread that reads samples ahead computes, while the rank waits for a file.
TEST(Diagnosis, ARankThatWaitsForDataIsBlockedWhateverItsOtherThreadsDo) {
  for_each_cause([](Job& job, int cause) {
    job.others_call(cause, Outcome::none);
    job.at(cause).process.state = 'R';
    job.at(cause).process.busy = 0.9;
    job.at(cause).process.system_call = "read";
    const Diagnosis found = job.stalled();
    expect(found, FaultClass::blocked, {cause});
    EXPECT_NE(explain(found, job.ranks, {.now = job.clock}).find("its process waits in read()"), std::string::npos);
    // The main thread waits for another thread, which computes.
    job.at(cause).process.system_call = "futex";
    expect(job.stalled(), FaultClass::slow, {cause});
  });
}

// The rank was stopped when it had called already.
TEST(Diagnosis, ARankThatWasStoppedInsideACall) {
  for_each_cause([](Job& job, int cause) {
    for (int rank = 0; rank < job.size(); ++rank) job.call(rank, {}, Outcome::none);
    job.at(cause).process.state = 'T';
    expect(job.stalled(), FaultClass::stopped, {cause});
  });
}

// Ranks gave up after their deadline; the cause is still where it was.
TEST(Diagnosis, ATimeOut) {
  for_each_cause([](Job& job, int cause) {
    job.others_call(cause, Outcome::timeout);
    job.others_exit(cause);
    job.at(cause).process.state = 'T';
    expect(job.over(), FaultClass::stopped, {cause});
    job.at(cause).process.state = 'S';
    expect(job.over(), FaultClass::blocked, {cause});
    // It came when the others had gone.
    job.call(cause, {}, Outcome::peer).called = job.clock += 3 * kSecond;
    job.end(cause, 1, 1);
    job.at(cause).process.state = 'R';
    expect(job.over(), FaultClass::slow, {cause});
  });
}

// One rank after another made a call in which it waits.
struct Waits {
  std::string name;
  std::function<void(Job& job, int cause, Outcome outcome)> call;
};

const std::vector<Waits>& deadlocks() {
  static const std::vector<Waits> all{
      {"two groups in another order",
       [](Job& job, int cause, Outcome outcome) {
         for (int rank = 0; rank < job.size(); ++rank) {
           job.open(rank, "a", rank, job.size());
           job.open(rank, "b", rank, job.size());
         }
         for (int rank = 0; rank < job.size(); ++rank) job.call(rank, {}, outcome, rank == cause ? 2 : 1);
       }},
      {"more steps than the others, who went on to another group",
       [](Job& job, int cause, Outcome outcome) {
         for (int rank = 0; rank < job.size(); ++rank) job.open(rank, "default.dup1", rank, job.size());
         for (int step = 0; step < kSteps; ++step) {
           for (int rank = 0; rank < job.size(); ++rank) job.call(rank, {.line = 20}, Outcome::good, 1);
         }
         for (int rank = 0; rank < job.size(); ++rank)
           job.call(rank, {.count = rank == cause ? 9U : 1U, .line = rank == cause ? 20 : 30}, outcome,
                    rank == cause ? 1 : 0);
       }},
      {"all receive",
       [](Job& job, int, Outcome outcome) {
         for (int rank = 0; rank < job.size(); ++rank)
           job.call(rank, {.kind = CallKind::recv, .root = (rank + 1) % job.size()}, outcome);
       }},
      {"a call that one rank makes alone", [](Job& job, int cause, Outcome outcome) {
         for (int rank = 0; rank < job.size(); ++rank) job.open(rank, "default.dup1", rank, job.size());
         for (int rank = 0; rank < job.size(); ++rank) job.call(rank, {.line = 40}, outcome, rank == cause ? 0 : 1);
       }}};
  return all;
}

// The ranks gave up one after another, and what the last ones got may be that others had gone. What is said of such a
// job is what would have been said of it before.
TEST(Diagnosis, ADeadlockThatADeadlineEndedIsJudgedAsItStood) {
  for (const Waits& waits : deadlocks()) {
    for_each_cause([&](Job& stands, int cause) {
      SCOPED_TRACE(waits.name);
      for (const Outcome later : {Outcome::timeout, Outcome::peer}) {
        Job ended(stands.size());
        waits.call(ended, cause, Outcome::timeout);
        bool is_first = true;
        for (int i = 0; i < ended.size(); ++i) {
          const int rank = (cause + i) % ended.size();
          for (GroupTable& group : ended.at(rank).groups) {
            for (CallRow& call : group.calls) {
              if (call.outcome != Outcome::timeout) continue;
              call.ended = ended.clock + kSecond + i * 1'000'000;
              if (!std::exchange(is_first, false)) call.outcome = later;
            }
            group.closed = i % 2 == 0;
          }
          ended.end(rank, 1, i);
        }
        Job before(stands.size());
        waits.call(before, cause, Outcome::none);
        for (RankTable& rank : before.ranks) rank.process.seen = false;
        const Diagnosis expected = before.stalled();
        const Diagnosis found = ended.over();
        expect(found, expected.fault, expected.culprits);
        EXPECT_NE(name_of(found.fault), name_of(FaultClass::left));
        EXPECT_EQ(found.certain, expected.certain);
      }
    });
  }
}

// What a deadline ended long before the failure says nothing of the failure.
TEST(Diagnosis, ADeadlineAfterWhichCallsWentWellSaysNothing) {
  for_each_cause([](Job& job, int cause) {
    job.call(cause == 0 ? 1 : 0, {.kind = CallKind::recv, .root = cause}, Outcome::timeout);
    job.clock += 2 * kSecond;
    for (int rank = 0; rank < job.size(); ++rank) job.call(rank, {}, Outcome::good);
    job.others_call(cause, Outcome::peer);
    job.others_exit(cause);
    job.end(cause, 0, -1);
    expect(job.over(), FaultClass::left, {cause});
  });
}

// The cause has begun a call that the others come to later, and does something else. The others wait for another call.
TEST(Diagnosis, ARankThatComputesWhileItsCallIsUnderWayIsTheOneThatIsMissed) {
  for_each_cause([](Job& job, int cause) {
    for (int rank = 0; rank < job.size(); ++rank) job.open(rank, "other", rank, job.size());
    for (RankTable& rank : job.ranks) rank.process.system_call = "futex";
    job.call(cause, {}, Outcome::none).waited = Waited::no;
    const Made barrier{.kind = CallKind::barrier, .line = 20};
    for (int rank = 0; rank < job.size(); ++rank) {
      if (rank == cause) continue;
      CallRow& call = job.call(rank, barrier, Outcome::none, 1);
      call.waited = Waited::yes;
      call.wait_place.line = "train.py:21 (main)";
    }
    job.at(cause).process.state = 'R';
    job.at(cause).process.system_call = "";
    const Diagnosis found = job.stalled();
    expect(found, FaultClass::slow, {cause});
    EXPECT_TRUE(found.certain);
    EXPECT_EQ(found.call->place.line, "train.py:20 (main)") << "not the call of the cause, which nobody waits for";
    const std::string words = explain(found, job.ranks, {.now = job.clock + 10 * kSecond});
    EXPECT_NE(words.find("and waits for it at train.py:21 (main)"), std::string::npos) << words;
    const char* const course = "is under way, for 10 s, and no thread waits for it; its process computes";
    EXPECT_NE(words.find(course), std::string::npos) << words;
    // A sleep is no computing, and no wait for the call.
    job.at(cause).process.state = 'S';
    job.at(cause).process.system_call = "clock_nanosleep";
    expect(job.stalled(), FaultClass::blocked, {cause});
    // In a futex the main thread may wait for the future of the call, whatever other threads do: all ranks wait then.
    job.at(cause).process.state = 'R';
    job.at(cause).process.system_call = "futex";
    EXPECT_NE(job.stalled().fault, FaultClass::slow);
    // So they do where the rank waits in a second call.
    job.at(cause).process.system_call = "";
    job.call(cause, {.kind = CallKind::broadcast, .line = 30, .root = 0}, Outcome::none).waited = Waited::yes;
    EXPECT_NE(job.stalled().fault, FaultClass::slow);
  });
}

// A rank that computes while its call is under way takes no part in a ring of others, nor in the search for odd ones
// out.
TEST(Diagnosis, ARingOfRanksBesideARankThatComputesIsADeadlock) {
  Job job(3);
  for (RankTable& rank : job.ranks) rank.process.system_call = "futex";
  for (const int rank : {0, 1}) job.open(rank, "other", rank, 2);
  job.call(0, {}, Outcome::none);
  job.call(1, {.kind = CallKind::barrier, .line = 20}, Outcome::none, 1);
  job.call(2, {}, Outcome::none).waited = Waited::no;
  job.at(2).process.state = 'R';
  job.at(2).process.system_call = "";
  const Diagnosis found = job.stalled();
  EXPECT_EQ(found.fault, FaultClass::deadlock);
  EXPECT_EQ(found.culprits, (std::vector<int>{0, 1}));
}

// All but the cause have receives of each other ready for the end of the job, and have come to the next collective.
TEST(Diagnosis, ARingOfReceivesThatLieReadyHidesNoRankThatIsMissed) {
  for_each_cause([](Job& job, int cause) {
    const int others = job.size() - 1;
    if (others < 2) return;
    for (int place = 0; place < others; ++place) {
      const int next = (cause + 1 + (place + 1) % others) % job.size();
      job.call((cause + 1 + place) % job.size(), {.kind = CallKind::recv, .root = next}, Outcome::none);
    }
    const Diagnosis ring = job.stalled();
    EXPECT_EQ(name_of(ring.fault), name_of(FaultClass::deadlock));
    job.others_call(cause, Outcome::none);
    job.at(cause).process.state = 'R';
    const Diagnosis found = job.stalled();
    expect(found, FaultClass::slow, {cause});
    EXPECT_EQ(name_of(found.call->kind), "all_reduce");
  });
}

// Rank 0 waits in one group for rank 1, which waits in another group for the cause.
TEST(Diagnosis, WaitsAreFollowedFromGroupToGroup) {
  Job job(3);
  for (int rank = 0; rank < 3; ++rank) job.open(rank, "default.dup1", rank, 3);
  job.call(0, {}, Outcome::none);
  job.call(1, {}, Outcome::none, 1);
  job.call(0, {}, Outcome::none, 1);
  job.at(2).process.state = 'R';
  expect(job.stalled(), FaultClass::slow, {2});
  // All wait in different groups.
  job.call(2, {}, Outcome::none);
  expect(job.stalled(), FaultClass::deadlock, {1, 2});
}

// The cause has got over an error of its own before; one of the ranks that it keeps waiting waits in another group.
TEST(Diagnosis, ARankWithAnOldErrorIsNamedWhenTheOthersWaitInSeveralGroups) {
  Job job(3);
  for (int rank = 0; rank < 3; ++rank) job.open(rank, "default.dup1", rank, 3);
  job.open(2, "own", 0, 1);
  job.call(0, {}, Outcome::none);
  job.call(2, {}, Outcome::peer, 2);
  job.call(2, {}, Outcome::good, 2);
  job.call(1, {}, Outcome::none, 1);
  job.at(2).process.state = 'R';
  expect(job.stalled(), FaultClass::slow, {2});
}

// Groups of the same path that have nothing to do with each other: the inner groups of two hosts, for example.
TEST(Diagnosis, GroupsThatAreNotOneGroupAreLeftOut) {
  Job job(4);
  for (int rank = 0; rank < 4; ++rank) job.open(rank, "group", rank % 2, 2);
  for (int rank = 0; rank < 4; ++rank)
    job.call(rank, {.count = static_cast<std::uint64_t>(rank / 2 + 1)}, Outcome::good, 1);
  EXPECT_EQ(job.over().fault, FaultClass::none);
  std::swap(job.ranks[1], job.ranks[3]);
  EXPECT_EQ(job.over().fault, FaultClass::none) << "the tables come in any order";
}

// No launcher has looked at the processes.
TEST(Diagnosis, ARankWhoseStateIsNotKnownIsNotCalledTheCause) {
  for_each_cause([](Job& job, int cause) {
    for (RankTable& rank : job.ranks) rank.process.seen = false;
    job.others_call(cause, Outcome::none);
    const Diagnosis found = job.stalled();
    expect(found, FaultClass::unknown, {cause});
    const std::string end = concat(" for rank ", cause, "; its state is not known\n");
    EXPECT_TRUE(job.words(found).starts_with("the others waited" + end)) << job.words(found);
    const std::string running = explain(found, job.ranks, {.now = job.clock});
    EXPECT_TRUE(running.starts_with("the others wait" + end)) << running;
    EXPECT_EQ(running.find("the cause"), std::string::npos) << running;
  });
}

// The tables of another host's ranks are missing.
TEST(Diagnosis, WithTablesMissingNobodyIsBlamedForThem) {
  Job job(4);
  job.others_call(3, Outcome::none);
  job.ranks.pop_back();
  const Diagnosis found = job.stalled();
  EXPECT_EQ(found.fault, FaultClass::unknown);
  EXPECT_TRUE(found.culprits.empty());
}

TEST(Diagnosis, ARankThatHasNotComeToTheGroupIsTheOneThatIsMissed) {
  for_each_cause([](Job& job, int cause) {
    job.at(cause).groups.clear();
    job.at(cause).process.state = 'R';
    for (RankTable& rank : job.ranks) {
      for (GroupTable& group : rank.groups) group.calls.clear();
    }
    job.others_call(cause, Outcome::none);
    expect(job.stalled(), FaultClass::slow, {cause});
  });
}

}  // namespace
}  // namespace gradwire::observe::diagnosis_test::waits

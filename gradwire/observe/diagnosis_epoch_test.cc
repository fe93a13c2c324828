// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The decision for elastic jobs, whose ranks change from epoch to epoch.
#include <gtest/gtest.h>
#include <signal.h>

#include <string>
#include <vector>

#include "gradwire/base/strings.h"
#include "gradwire/observe/diagnosis.h"
#include "gradwire/observe/diagnosis_test_support.h"
#include "gradwire/observe/epoch_path.h"

namespace gradwire::observe::diagnosis_test::epochs {
namespace {

// In an epoch of an elastic job, a rank's number in the group is not its number in the job.
TEST(Diagnosis, OfAnEpochNobodyIsNamedWhosePlaceIsNotCertain) {
  const auto enter = [](Job& job, const std::vector<int>& job_ranks) {
    for (std::size_t place = 0; place < job_ranks.size(); ++place) {
      if (job_ranks[place] >= 0) job.open(job_ranks[place], "epoch 2", static_cast<int>(place), job.size());
    }
  };
  // Rank 0 was replaced: its new process has the last place. Ranks 2 and 3 have come, ranks 0 and 1 have not.
  Job job(4);
  enter(job, {-1, 2, 3, -1});
  for (const int rank : {2, 3}) job.call(rank, {}, Outcome::none, 1);
  job.at(0).process.state = 'R';
  Diagnosis found = job.stalled();
  EXPECT_EQ(found.fault, FaultClass::unknown);
  EXPECT_TRUE(found.culprits.empty()) << "place 0 of the group is not known to be rank 0";
  // A message names one place, which is nobody's for certain.
  Job sends(4);
  enter(sends, {0, 1, -1, -1});
  sends.call(0, {.kind = CallKind::recv, .root = 2}, Outcome::none, 1);
  sends.at(2).process.state = 'R';
  EXPECT_TRUE(sends.stalled().culprits.empty());
  // Only one rank and one place are left: they belong together.
  Job last(4);
  enter(last, {3, 1, -1, 0});
  for (const int rank : {3, 1, 0}) last.call(rank, {}, Outcome::none, 1);
  last.at(2).process.state = 'R';
  expect(last.stalled(), FaultClass::slow, {2});
}

// An elastic job of three ranks. In epoch 1 a rank died, and a call of the others failed; the rank was replaced. All
// are in epoch 2, where the new process has the last place.
class EpochJob : public Job {
 public:
  explicit EpochJob(int replaced) : Job(3), replaced_(replaced) {
    for (RankTable& rank : ranks) rank.groups.clear();
    for (int rank = 0; rank < 3; ++rank) enter(rank, 1, rank, 3);
    all_call(Outcome::good);
    others_call(replaced, Outcome::peer);
    clock += 2 * kSecond;
    at(replaced).groups.clear();
    at(replaced).pid = 201;
    at(replaced).started = clock;
    for (int rank = 0; rank < 3; ++rank) enter(rank, 2, (rank - replaced + 2) % 3, 3);
    all_call(Outcome::good);
  }

  void enter(int rank, int epoch, int place, int size) { open(rank, concat("epoch ", epoch), place, size); }
  CallRow& last_group_call(int rank, Outcome outcome, const Made& made = {}) {
    return call(rank, made, outcome, at(rank).groups.size() - 1);
  }
  void all_call(Outcome outcome, int without = -1) {
    for (int rank = 0; rank < 3; ++rank) {
      if (rank != without) last_group_call(rank, outcome);
    }
  }
  int replaced() const { return replaced_; }

 private:
  const int replaced_;
};

// For each rank that was replaced before, and each rank that is the cause now.
template <class Test>
void for_each_epoch_job(const Test& test) {
  for (const int replaced : {0, 1, 2}) {
    for (const int cause : {0, 1, 2}) {
      SCOPED_TRACE(concat("rank ", replaced, " was replaced, and rank ", cause, " is the cause"));
      EpochJob job(replaced);
      test(job, cause);
    }
  }
}

TEST(Diagnosis, CallsThatFailedInAnEarlierEpochBlameNobody) {
  for_each_epoch_job([](EpochJob& job, int cause) {
    EXPECT_EQ(job.stalled().fault, FaultClass::none);
    EXPECT_EQ(job.over().fault, FaultClass::none);
    if (cause == job.replaced()) return;  // its new process has nothing of epoch 1
    EpochJob hook = job;
    hook.at(cause).notes.push_back({NoteKind::hook_failed, 2 * kSecond, "hook 'int8': it threw"});
    EXPECT_EQ(hook.over().fault, FaultClass::none) << "a hook that threw in an earlier epoch";
    job.at(cause).groups.front().calls.front().count += 1;
    EXPECT_EQ(job.over().fault, FaultClass::none) << "a mismatch of an earlier epoch";
  });
}

TEST(Diagnosis, TheEpochOfTheRankThatEndsTheJobIsJudged) {
  for_each_epoch_job([](EpochJob& job, int cause) {
    job.end(cause, SIGKILL, 0, true);
    job.all_call(Outcome::peer, cause);
    const auto expect_epoch_two = [&] {
      const Diagnosis found = job.over();
      expect(found, FaultClass::killed, {cause});
      EXPECT_EQ(found.group, "epoch 2");
    };
    expect_epoch_two();
    // The others may have begun another one before the launcher ended them.
    job.clock += 2 * kSecond;
    for (int rank = 0, place = 0; rank < 3; ++rank) {
      if (rank == cause) continue;
      job.enter(rank, 3, place++, 2);
      job.end(rank, SIGKILL, 1, true);
      job.at(rank).process.by_launcher = true;
    }
    job.all_call(Outcome::good, cause);
    expect_epoch_two();
  });
}

// Duplicates of the group whose ranks change: a newcomer's first one has the path of the first one of the others, which
// are further on, and had another place there.
TEST(Diagnosis, AGroupWhoseRanksChangeIsLeftOut) {
  for_each_epoch_job([](EpochJob& job, int cause) {
    for (int rank = 0; rank < 3; ++rank) {
      job.open(rank, "elastic.dup3", rank, 3);
      job.at(rank).groups.back().backend = kChangingRanks;
      if (rank != cause) job.last_group_call(rank, Outcome::good, {.count = 7});
      job.last_group_call(rank, rank == cause ? Outcome::good : Outcome::peer);
    }
    EXPECT_EQ(job.over().fault, FaultClass::none);
    EXPECT_EQ(job.stalled().fault, FaultClass::none);
  });
}

// Its calls fail where the newcomer died, or the members stopped before it had the state.
TEST(Diagnosis, AGroupInWhichANewcomerFollowedIsLeftOut) {
  for_each_epoch_job([](EpochJob& job, int cause) {
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == cause) continue;
      job.open(rank, path_of_following(4), rank, 3);
      job.last_group_call(rank, Outcome::aborted);
    }
    EXPECT_EQ(job.over().fault, FaultClass::none);
    EXPECT_EQ(job.stalled().fault, FaultClass::none);
  });
}

TEST(Diagnosis, ARankThatWentOnInANewEpochIsNoVictimOfAnEarlierOne) {
  for_each_epoch_job([](EpochJob& job, int cause) {
    for (RankTable& rank : job.ranks) rank.groups.back().calls.clear();  // nothing has gone well in epoch 2 yet
    job.end(cause, 1, 0);
    job.at(cause).process.last_lines = {"RuntimeError: the state does not fit"};
    expect(job.over(), FaultClass::failed, {cause});
  });
}

TEST(Diagnosis, AProcessThatHadComeToNoEpochIsTheCauseOnlyWhereItEndsTheJob) {
  for_each_epoch_job([](EpochJob& job, int cause) {
    job.at(cause).groups.clear();
    job.end(cause, 1, 0);
    const Diagnosis found = job.over();
    expect(found, FaultClass::failed, {cause});
    EXPECT_FALSE(found.call) << "nobody waited for it";
    job.at(cause).process.order = 1;
    EXPECT_EQ(job.over().fault, FaultClass::none);
  });
}

// Its process began after the epoch, so it is none of its members, whose dead one has the place that is left.
TEST(Diagnosis, AProcessThatIsYoungerThanTheEpochIsNotTheOneThatIsMissed) {
  for_each_epoch_job([](EpochJob& job, int cause) {
    job.all_call(Outcome::none, cause);
    job.at(cause).groups.clear();
    job.at(cause).started = job.clock + kSecond;
    for (const char state : {'R', 'T', '?'}) {
      if (state == '?') job.at(cause).pid = 0;  // it has recorded nothing yet
      job.at(cause).process.state = state;
      EXPECT_EQ(job.stalled().fault, FaultClass::unknown);
      EXPECT_TRUE(job.stalled().culprits.empty());
    }
  });
}

TEST(Diagnosis, TheAgeOfAProcessOfAnotherHostIsAsCertainAsTheClocks) {
  for (const std::int64_t wall : {0, 1, -1}) {
    SCOPED_TRACE(concat("wall clock ", wall, " s"));
    EpochJob job(0);
    job.all_call(Outcome::none, 1);
    const std::int64_t first = job.at(2).groups.back().calls.front().called;
    job.at(1).groups.clear();
    job.at(1).process.state = 'R';
    job.at(1).wall_offset += wall * kSecond;
    // Half a second after the first call of the epoch, and four seconds before.
    job.at(1).started = first + kSecond / 2;
    EXPECT_TRUE(job.stalled().culprits.empty());
    job.at(1).started = first - 4 * kSecond;
    expect(job.stalled(), FaultClass::slow, {1});
  }
}

}  // namespace
}  // namespace gradwire::observe::diagnosis_test::epochs

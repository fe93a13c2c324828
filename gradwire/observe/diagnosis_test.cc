// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The decision for each way in which ranks of a job end, and that no tables make it fail. Jobs have 2 to 5
// ranks, with each rank as the cause; diagnosis_*_test.cc have the other decisions.
#include "gradwire/observe/diagnosis.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <random>
#include <string>
#include <vector>

#include "gradwire/observe/diagnosis_test_support.h"

namespace gradwire::observe::diagnosis_test::ends {
namespace {

TEST(Diagnosis, AHealthyJobHasNoFault) {
  for (int size = 1; size <= 5; ++size) {
    Job job(size);
    EXPECT_EQ(job.over().fault, FaultClass::none);
    EXPECT_EQ(job.stalled().fault, FaultClass::none);
    EXPECT_EQ(job.words(job.over()), "");
    // A step under way: some ranks have come to the next call, and wait for less than the bound.
    if (size > 1) job.call(0, {}, Outcome::none);
    EXPECT_EQ(diagnose(job.ranks, {.now = job.clock + kSecond / 2, .bound = kSecond}).fault, FaultClass::none);
  }
  EXPECT_EQ(diagnose({}, {}).fault, FaultClass::none);
}

TEST(Diagnosis, ARankThatWasKilled) {
  for_each_cause([](Job& job, int cause) {
    job.others_call(cause, Outcome::peer);
    job.others_exit(cause);
    job.end(cause, SIGKILL, 0, true);
    const Diagnosis found = job.over();
    expect(found, FaultClass::killed, {cause});
    ASSERT_TRUE(found.call.has_value());
    EXPECT_EQ(found.call->sequence, 3 * kSteps + 1U);
    // What asks a process to end is no fault of the process: a scheduler, a time limit, Ctrl-C in a rank's terminal.
    for (const int request : {SIGTERM, SIGINT, SIGHUP, SIGXCPU}) {
      job.at(cause).process.code = request;
      expect(job.over(), FaultClass::killed, {cause});
    }
    job.at(cause).process.code = SIGSEGV;
    expect(job.over(), FaultClass::crashed, {cause});
    // The launcher ended it: somebody else is the cause, and is not known.
    job.at(cause).process.by_launcher = true;
    EXPECT_NE(job.over().fault, FaultClass::crashed);
  });
}

TEST(Diagnosis, ARankThatDiedFirstIsTheCauseAmongSeveral) {
  Job job(3);
  job.others_call(2, Outcome::peer);
  job.end(0, SIGKILL, 1, true);
  job.end(1, SIGKILL, 1, true);
  job.end(2, SIGKILL, 0, true);
  expect(job.over(), FaultClass::killed, {2});
}

// The rank with the error of its own may be the last to exit: the others notice at once that it goes.
TEST(Diagnosis, ARankThatFailedByItselfIsToldFromThoseThatFailBecauseOfIt) {
  for_each_cause([](Job& job, int cause) {
    job.others_call(cause, Outcome::peer);
    for (int rank = 0; rank < job.size(); ++rank) {
      // A C++ program that catches nothing ends with SIGABRT.
      rank % 2 == 0 ? job.end(rank, 1, 1) : job.end(rank, SIGABRT, 1, true);
    }
    job.end(cause, 1, 1);
    job.at(cause).process.last_lines = {"Traceback", "ValueError: no such file"};
    const Diagnosis found = job.over();
    expect(found, FaultClass::failed, {cause});
    EXPECT_EQ(found.words, "ValueError: no such file");
  });
}

// In an elastic job the ranks go on in another group after one has gone. What fails then has a cause of its own.
TEST(Diagnosis, ARankThatWentOnAfterTheFailureOfAnotherIsNoVictimOfIt) {
  for_each_cause([](Job& job, int cause) {
    const auto all_call = [&](Outcome outcome, std::size_t group) {
      for (int rank = 0; rank < job.size(); ++rank) job.call(rank, {}, outcome, group);
    };
    all_call(Outcome::peer, 0);
    job.clock += 2 * kSecond;
    for (int rank = 0; rank < job.size(); ++rank) job.open(rank, "default/epoch-2", rank, job.size());
    for (int i = 0; i < 3; ++i) all_call(Outcome::good, 1);
    for (int rank = 0; rank < job.size(); ++rank) {
      if (rank != cause) job.call(rank, {}, Outcome::peer, 1);
      job.end(rank, 1, 1);
    }
    expect(job.over(), FaultClass::failed, {cause});
    Job hook = job;
    hook.at(cause).notes.push_back({NoteKind::hook_failed, hook.clock, "hook 'int8': it threw"});
    expect(hook.over(), FaultClass::hook_exception, {cause});
  });
}

TEST(Diagnosis, AnExceptionThatAProgramDoesNotCatchIsItsOwnError) {
  for_each_cause([](Job& job, int cause) {
    job.others_call(cause, Outcome::peer);
    job.others_exit(cause);
    job.end(cause, SIGABRT, 0, true);
    expect(job.over(), FaultClass::crashed, {cause});
    job.at(cause).process.last_lines = {"terminate called after throwing an instance of 'gradwire::InvalidArgument'",
                                        "  what():  unknown hook 'int9'"};
    const Diagnosis found = job.over();
    expect(found, FaultClass::failed, {cause});
    EXPECT_EQ(found.words, "unknown hook 'int9'");
  });
}

TEST(Diagnosis, RanksThatFailWithTheSameErrorAreNamedTogether) {
  Job job(3);
  for (int rank = 0; rank < 3; ++rank) {
    job.end(rank, 1, 2 - rank);
    job.at(rank).process.last_lines = {rank == 1 ? "ValueError: another one" : "ValueError: no such hook"};
  }
  expect(job.over(), FaultClass::failed, {0, 2});
}

TEST(Diagnosis, OutOfMemory) {
  for_each_cause([](Job& job, int cause) {
    job.others_call(cause, Outcome::peer);
    job.others_exit(cause);
    job.end(cause, SIGKILL, 0, true);
    job.at(cause).process.out_of_memory = true;
    expect(job.over(), FaultClass::out_of_memory, {cause});
    job.end(cause, SIGABRT, 0, true);
    job.at(cause).process.last_lines = {"terminate called after throwing an instance of 'std::bad_alloc'"};
    expect(job.over(), FaultClass::out_of_memory, {cause});
    job.end(cause, 1, 0);
    job.at(cause).process.by_signal = false;
    job.at(cause).process.last_lines = {"RuntimeError: CUDA out of memory"};
    expect(job.over(), FaultClass::out_of_memory, {cause});
  });
}

TEST(Diagnosis, AHookThatThrew) {
  for_each_cause([](Job& job, int cause) {
    job.others_call(cause, Outcome::peer);
    for (int rank = 0; rank < job.size(); ++rank) job.end(rank, 1, 1);
    job.at(cause).notes.push_back({NoteKind::hook_failed, job.clock - 10, "hook 'x': no such file"});
    // What a hook of another rank throws because its call failed is no error of its own.
    for (int rank = 0; rank < job.size(); ++rank) {
      if (rank != cause)
        job.at(rank).notes.push_back({NoteKind::hook_failed, job.clock + 2 * kSecond, "the peer has gone"});
    }
    const Diagnosis found = job.over();
    expect(found, FaultClass::hook_exception, {cause});
    EXPECT_EQ(found.words, "hook 'x': no such file");
    // Also where the cause can say nothing.
    job.at(cause).notes.clear();
    job.end(cause, SIGKILL, 0, true);
    expect(job.over(), FaultClass::killed, {cause});
  });
}

TEST(Diagnosis, AHookThatFoundNoMemoryRanOutOfMemory) {
  for_each_cause([](Job& job, int cause) {
    job.at(cause).notes.push_back({NoteKind::hook_failed, job.clock - 10, "hook 'x': std::bad_alloc"});
    job.others_call(cause, Outcome::peer);
    job.others_exit(cause);
    job.end(cause, 1, 1);
    expect(job.over(), FaultClass::out_of_memory, {cause});
  });
}

// The first rank to fail has gone when another one comes, which then fails and closes its group too.
TEST(Diagnosis, ARankThatFailedBecauseOneLeftIsNotTheCauseToo) {
  Job job(3);
  job.at(2).groups[0].closed = true;
  job.call(0, {}, Outcome::peer).ended = job.clock + 10;
  job.clock += kSecond;
  job.call(1, {}, Outcome::peer).ended = job.clock + 10;
  job.at(1).groups[0].closed = true;
  job.others_exit(2);
  expect(job.over(), FaultClass::left, {2});
}

TEST(Diagnosis, ARankThatLeftItsLoop) {
  for_each_cause([](Job& job, int cause) {
    job.others_call(cause, Outcome::peer);
    job.others_exit(cause);
    job.end(cause, 0, -1);
    expect(job.over(), FaultClass::left, {cause});
    Job waits(job.size());
    waits.others_call(cause, Outcome::none);
    waits.at(cause).groups[0].closed = true;
    expect(waits.stalled(), FaultClass::left, {cause});
  });
}

// Whatever the last look at the process showed.
TEST(Diagnosis, AProcessThatHasEndedIsNotBlocked) {
  Job job(3);
  for (const int rank : {0, 1}) job.open(rank, "pair", rank, 2);
  job.call(0, {}, Outcome::peer, 1);
  job.call(1, {}, Outcome::peer);
  for (const int rank : {0, 1}) job.end(rank, 1, rank);
  job.end(2, 0, -1);
  expect(job.over(), FaultClass::failed, {1});
  job.at(1).process.by_launcher = true;
  expect(job.over(), FaultClass::blocked, {1});
}

// The dead rank had gone on to another call; the report names the one in which the others were.
TEST(Diagnosis, TheCallIsThatOfTheOthersAndNotThatOfTheCause) {
  for_each_cause([](Job& job, int cause) {
    job.open(cause, "own", 0, 1);
    job.call(cause, {.kind = CallKind::barrier, .count = 0, .line = 77}, Outcome::none, 1);
    job.others_call(cause, Outcome::peer);
    job.others_exit(cause);
    job.end(cause, SIGKILL, 0, true);
    const Diagnosis found = job.over();
    expect(found, FaultClass::killed, {cause});
    ASSERT_TRUE(found.call.has_value());
    EXPECT_EQ(found.call->kind, CallKind::all_reduce);
    EXPECT_EQ(found.group, "default");
  });
}

// No table, however wrong, makes the decision crash or name a rank that is not in the job.
TEST(Diagnosis, AnyTablesAreFine) {
  std::mt19937 random(7);
  const auto below = [&](int bound) { return static_cast<int>(random() % static_cast<unsigned>(bound)); };
  for (int round = 0; round < 3000; ++round) {
    Job job(2 + below(3));
    for (int change = 0; change < 6; ++change) {
      RankTable& rank = job.at(below(job.size()));
      rank.process.state = "RSTD?"[below(5)];
      rank.process.has_ended = below(3) == 0;
      rank.process.code = below(12);
      if (below(4) == 0) rank.groups.push_back({"g", "", "", below(6) - 1, below(6) - 1, false, 0, {}});
      if (rank.groups.empty()) continue;
      auto& calls = rank.groups[static_cast<std::size_t>(below(static_cast<int>(rank.groups.size())))].calls;
      if (below(3) == 0) calls.clear();
      CallRow row;
      row.sequence = static_cast<std::uint64_t>(below(25));
      row.kind = static_cast<CallKind>(below(30));
      row.outcome = static_cast<Outcome>(below(12));
      row.root = below(8) - 2;
      row.message_tag = below(5) - 2;
      row.called = below(1000);
      row.peers = random();
      row.dtype = static_cast<std::uint8_t>(below(256));
      calls.push_back(row);
    }
    for (const Diagnosis& found : {job.over(), job.stalled()}) {
      for (const int rank : found.culprits) EXPECT_TRUE(rank >= -1 && rank < job.size()) << rank;
      job.words(found);
    }
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace gradwire::observe::diagnosis_test::ends

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The decision for each class of fault, from tables as ranks would have recorded them, in jobs of 2 to 5 ranks with
// each rank as the cause.
#include "gradwire/observe/diagnosis.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/base/strings.h"
#include "gradwire/observe/epoch_path.h"

namespace gradwire::observe::diagnosis_test {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr int kSteps = 6;

struct Made {
  CallKind kind = CallKind::all_reduce;
  std::uint64_t count = 1024;
  int line = 10;  // of the program
  std::uint8_t dtype = 2;
  int root = -1;
  int tag = -1;  // of a message
};

// A job of a program whose steps make three calls. The clock is a number that grows with every call.
class Job {
 public:
  explicit Job(int size) : ranks(static_cast<std::size_t>(size)) {
    for (int rank = 0; rank < size; ++rank) {
      at(rank).rank = rank;
      at(rank).world = size;
      at(rank).pid = 100 + rank;
      at(rank).wall_offset = 1000 * kSecond;
      at(rank).process.seen = true;
      at(rank).process.state = 'S';
      open(rank, "default", rank, size);
    }
    for (int step = 0; step < kSteps; ++step) {
      for (const Made& made : step_calls()) {
        for (int rank = 0; rank < size; ++rank) call(rank, made, Outcome::good);
      }
    }
  }

  static std::vector<Made> step_calls() {
    return {{}, {.count = 1, .line = 11}, {.kind = CallKind::broadcast, .count = 4, .line = 12, .root = 0}};
  }

  RankTable& at(int rank) { return ranks[static_cast<std::size_t>(rank)]; }
  int size() const { return static_cast<int>(ranks.size()); }

  void open(int rank, const std::string& path, int rank_in_group, int group_size) {
    at(rank).groups.push_back({path, "shm", "", rank_in_group, group_size, false, 0, {}});
  }

  CallRow& call(int rank, const Made& made, Outcome outcome, std::size_t group = 0) {
    GroupTable& table = at(rank).groups.at(group);
    CallRow row;
    row.ticket = table.next_ticket++;
    row.kind = made.kind;
    std::uint64_t collectives = 0;
    for (const CallRow& each : table.calls) collectives += is_message(each.kind) ? 0 : 1;
    row.sequence = is_message(made.kind) ? 0 : collectives + 1;
    for (const CallRow& each : table.calls) row.refused += each.outcome == Outcome::refused ? 1 : 0;
    row.dtype = made.dtype;
    row.count = made.count;
    row.root = made.root;
    row.message_tag = made.tag;
    row.called = clock += 1000;
    row.outcome = outcome;
    if (outcome != Outcome::none) row.ended = clock + (outcome == Outcome::good ? 500 : kSecond);
    row.place.line = concat("train.py:", made.line, " (main)");
    table.calls.push_back(row);
    return table.calls.back();
  }

  // All ranks but `cause` make the call, which ends so.
  void others_call(int cause, Outcome outcome, const Made& made = {}) {
    for (int rank = 0; rank < size(); ++rank) {
      if (rank != cause) call(rank, made, outcome);
    }
  }

  void end(int rank, int code, int order, bool by_signal = false) {
    at(rank).process.has_ended = true;
    at(rank).process.by_signal = by_signal;
    at(rank).process.code = code;
    at(rank).process.order = order;
  }

  // The job is over: all ranks but `cause` have reported an error and exited.
  void others_exit(int cause) {
    for (int rank = 0; rank < size(); ++rank) {
      if (rank != cause) end(rank, 1, 1);
    }
  }

  Diagnosis over() const { return diagnose(ranks, {.is_over = true, .now = clock}); }
  Diagnosis stalled() const { return diagnose(ranks, {.now = clock + 10 * kSecond, .bound = kSecond}); }
  std::string words(const Diagnosis& diagnosis) const {
    return explain(diagnosis, ranks, {.is_over = true, .now = clock});
  }

  std::vector<RankTable> ranks;
  std::int64_t clock = kSecond;
};

// Runs `test(job, cause)` for jobs of 2 to 5 ranks and each rank as the cause, with the tables in any order.
template <class Test>
void for_each_cause(const Test& test) {
  for (int size = 2; size <= 5; ++size) {
    for (int cause = 0; cause < size; ++cause) {
      SCOPED_TRACE(concat("rank ", cause, " of ", size));
      Job job(size);
      test(job, cause);
    }
  }
}

void expect(const Diagnosis& found, FaultClass fault, std::vector<int> culprits) {
  EXPECT_EQ(name_of(found.fault), name_of(fault));
  EXPECT_EQ(found.culprits, culprits);
}

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

TEST(Diagnosis, AHookThatFoundNoMemoryRanOutOfMemory) {
  for_each_cause([](Job& job, int cause) {
    job.at(cause).notes.push_back({NoteKind::hook_failed, job.clock - 10, "hook 'x': std::bad_alloc"});
    job.others_call(cause, Outcome::peer);
    job.others_exit(cause);
    job.end(cause, 1, 1);
    expect(job.over(), FaultClass::out_of_memory, {cause});
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

TEST(Diagnosis, ANetworkThatIsGone) {
  for_each_cause([](Job& job, int cause) {
    for (RankTable& rank : job.ranks) rank.groups[0].backend = "ucx";
    for (int rank = 0; rank < job.size(); ++rank) {
      CallRow& call = job.call(rank, {}, rank == cause ? Outcome::timeout : Outcome::peer);
      call.ended = job.clock + kSecond;
      call.peers = rank == cause ? 0 : std::uint64_t{1} << cause;
      job.end(rank, 1, rank == 0 ? 0 : 1);
    }
    const Diagnosis found = job.over();
    expect(found, FaultClass::network, {cause});
  });
  // Two ranks that miss each other.
  Job job(2);
  for (int rank = 0; rank < 2; ++rank) {
    CallRow& call = job.call(rank, {}, Outcome::peer);
    call.peers = std::uint64_t{1} << (1 - rank);
    job.end(rank, 1, rank);
  }
  expect(job.over(), FaultClass::unknown, {});
  for (RankTable& rank : job.ranks) rank.groups[0].backend = "ucx";
  expect(job.over(), FaultClass::network, {});
}

// Ranks 2 and 3 are on a host whose clocks are ahead of or behind the others'.
void shift_second_host(Job& job, std::int64_t wall, std::int64_t monotonic) {
  for (const int rank : {2, 3}) {
    job.at(rank).wall_offset += wall - monotonic;
    for (CallRow& call : job.at(rank).groups[0].calls) {
      call.called += monotonic;
      call.ended += call.ended == 0 ? 0 : monotonic;
    }
  }
}

TEST(Diagnosis, ClocksOfHostsThatDifferMakeNobodyLate) {
  for (const std::int64_t wall : {0, 5, -5, 50}) {
    for (const std::int64_t monotonic : {0, 4000, -1}) {
      for (const bool has_history : {true, false}) {
        SCOPED_TRACE(concat("wall clock ", wall, " s, monotonic clock ", monotonic, " s, history ", has_history));
        Job job(4);
        for (RankTable& rank : job.ranks) {
          if (!has_history) rank.groups[0].calls.clear();
          rank.groups[0].backend = "ucx";
        }
        const std::int64_t start = job.clock;
        for (int rank = 0; rank < 4; ++rank) {
          CallRow& call = job.call(rank, {}, Outcome::peer);
          call.ended = start + 2 * kSecond;
          call.peers = rank < 2 ? 0b1100 : 0b0011;
          job.end(rank, 1, rank == 0 ? 0 : 1);
        }
        shift_second_host(job, wall * kSecond, monotonic * kSecond);
        EXPECT_EQ(name_of(job.over().fault), name_of(FaultClass::network));
      }
    }
  }
}

TEST(Diagnosis, ARankOfAnotherHostThatCameLateIsNamedWhereTheClocksShowIt) {
  for (const std::int64_t wall : {0, 5, -5, 50}) {
    for (const std::int64_t monotonic : {0, 4000, -1}) {
      for (const bool has_history : {true, false}) {
        SCOPED_TRACE(concat("wall clock ", wall, " s, monotonic clock ", monotonic, " s, history ", has_history));
        Job job(4);
        if (!has_history) {
          for (RankTable& rank : job.ranks) rank.groups[0].calls.clear();
        }
        job.others_call(3, Outcome::timeout);
        // Without calls of before, as much as the clocks may differ.
        job.clock += (has_history ? 2 : 200) * kSecond;
        job.call(3, {}, Outcome::peer);
        for (int rank = 0; rank < 4; ++rank) job.end(rank, 1, rank == 0 ? 0 : 1);
        job.at(3).process.state = 'R';
        shift_second_host(job, wall * kSecond, monotonic * kSecond);
        expect(job.over(), FaultClass::slow, {3});
      }
    }
  }
}

// By its wall clock, the late rank came first.
TEST(Diagnosis, ALateRankOfAHostWhoseClockIsBehindIsNamed) {
  Job job(3);
  job.others_call(2, Outcome::timeout);
  job.clock += 2 * kSecond;
  job.call(2, {}, Outcome::peer);
  for (int rank = 0; rank < 3; ++rank) job.end(rank, 1, rank == 0 ? 0 : 1);
  job.at(2).process.state = 'R';
  expect(job.over(), FaultClass::slow, {2});
  job.at(2).wall_offset -= 3 * kSecond;
  expect(job.over(), FaultClass::slow, {2});
}

// All ranks but 0 are on a host whose clock is ahead or behind. Rank 0 made another call in the first group, and what
// the ranks called in the second one follows from that.
TEST(Diagnosis, TheFirstOfTwoMismatchesIsFoundWhateverTheClocksOfHostsShow) {
  for (const std::int64_t wall : {0, 1, -1}) {
    SCOPED_TRACE(concat("wall clock ", wall, " s"));
    Job job(4);
    for (int rank = 0; rank < 4; ++rank) job.open(rank, "a second", rank, 4);
    job.call(0, {.count = 1, .line = 20}, Outcome::none);
    job.others_call(0, Outcome::none);
    job.clock += kSecond / 2;
    // In the second group rank 1 is wrong, so that rank 0, on the other host, is the first of those that are right.
    for (const int rank : {0, 2, 3}) job.call(rank, {.count = 5, .line = 31}, Outcome::none, 1);
    job.call(1, {.count = 7, .line = 30}, Outcome::none, 1);
    for (const int rank : {1, 2, 3}) job.at(rank).wall_offset += wall * kSecond;
    const Diagnosis found = job.stalled();
    EXPECT_EQ(found.group, "default");
    EXPECT_EQ(found.culprits, std::vector<int>{0});
  }
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

// No error yet: all ranks have made the call, and nothing comes of it.
TEST(Diagnosis, ACallOverANetworkThatAllRanksMadeAndThatStands) {
  Job job(3);
  for (int rank = 0; rank < 3; ++rank) job.call(rank, {}, Outcome::none);
  EXPECT_EQ(job.stalled().fault, FaultClass::unknown) << "there is no network on one host";
  for (int rank = 0; rank < 3; ++rank) job.at(rank).groups[0].backend = "ucx";
  const Diagnosis found = job.stalled();
  expect(found, FaultClass::network, {});
  ASSERT_TRUE(found.call.has_value());
}

// Of a message, the peer is the one that is missed.
TEST(Diagnosis, AReceiveWaitsForItsSender) {
  for_each_cause([](Job& job, int cause) {
    const int receiver = (cause + 1) % job.size();
    job.call(receiver, {.kind = CallKind::recv, .root = cause}, Outcome::none);
    job.at(cause).process.state = 'R';
    const Diagnosis found = job.stalled();
    expect(found, FaultClass::slow, {cause});
    EXPECT_EQ(found.call->kind, CallKind::recv);
  });
}

Made sent(int to, int tag) { return {.kind = CallKind::send, .root = to, .tag = tag}; }
Made received(int from, int tag) { return {.kind = CallKind::recv, .root = from, .tag = tag}; }

// Rank 1 has sent with tag 4, and both wait for messages with other tags.
Job job_of_two_tags() {
  Job job(2);
  job.call(1, sent(0, 4), Outcome::good);
  job.call(0, received(1, 3), Outcome::none);
  job.call(1, received(0, 5), Outcome::none);
  return job;
}

TEST(Diagnosis, AMessageWithAnotherTagThanTheOneThatIsWaitedForIsTold) {
  const std::string sentence = "rank 1 sent to rank 0 with tag 4; rank 0 waits for tag 3";
  Job job = job_of_two_tags();
  const Diagnosis found = job.stalled();
  EXPECT_EQ(found.fault, FaultClass::deadlock);
  EXPECT_EQ(found.likely_cause, sentence);
  EXPECT_NE(job.words(found).find(concat("  likely cause: ", sentence, "\n")), std::string::npos) << job.words(found);
  EXPECT_NE(job.words(found).find("recv(1024 f32, rank 1, tag 3)"), std::string::npos) << job.words(found);
  // A deadline ended the receives.
  for (RankTable& rank : job.ranks) {
    CallRow& last = rank.groups[0].calls.back();
    last.outcome = Outcome::timeout;
    last.ended = last.called + 5 * kSecond;
  }
  EXPECT_EQ(job.over().likely_cause, sentence);
  // The sender has left.
  Job other(2);
  other.call(1, sent(0, 4), Outcome::good);
  other.call(0, received(1, 0), Outcome::none);
  other.end(1, 0, -1);
  EXPECT_EQ(other.stalled().fault, FaultClass::left);
  EXPECT_EQ(other.stalled().likely_cause, "rank 1 sent to rank 0 with tag 4; rank 0 waits for tag 0");
  EXPECT_EQ(other.words(other.stalled()).find("tag 0)"), std::string::npos) << "the default is not shown in calls";
}

TEST(Diagnosis, AMessageThatWasOrWillBeTakenIsNoCause) {
  // Received, by a receive of its own, from any rank, or by one whose tag is not known; or a receive is there for it.
  for (const Made& receive : {received(1, 4), Made{.kind = CallKind::recv_anysource, .tag = 4}, received(1, -1)}) {
    for (const Outcome outcome : {Outcome::good, Outcome::none}) {
      Job job(2);
      job.call(1, sent(0, 4), Outcome::good);
      job.call(0, receive, outcome).waited = outcome == Outcome::none ? Waited::no : Waited::not_known;
      job.call(0, received(1, 3), Outcome::none);
      job.call(1, received(0, 5), Outcome::none);
      EXPECT_EQ(job.stalled().fault, FaultClass::deadlock);
      EXPECT_EQ(job.stalled().likely_cause, "");
    }
  }
  // The sender computes, and may send with tag 3 yet.
  Job slow(2);
  slow.call(1, sent(0, 4), Outcome::good);
  slow.call(0, received(1, 3), Outcome::none);
  slow.at(1).process.state = 'R';
  EXPECT_EQ(slow.stalled().fault, FaultClass::slow);
  EXPECT_EQ(slow.stalled().likely_cause, "");
  // It has sent with tag 3, too, or to another rank, or what it sent was refused.
  Job both(2);
  both.call(1, sent(0, 4), Outcome::good);
  both.call(1, sent(0, 3), Outcome::none).waited = Waited::no;
  both.call(0, received(1, 3), Outcome::none);
  both.call(1, received(0, 5), Outcome::none);
  EXPECT_EQ(both.stalled().likely_cause, "");
  Job elsewhere(3);
  elsewhere.call(1, sent(2, 4), Outcome::good);
  elsewhere.call(1, sent(0, 4), Outcome::refused);
  elsewhere.call(1, sent(0, -1), Outcome::good);  // its tag is not known
  elsewhere.call(0, received(1, 3), Outcome::none);
  elsewhere.call(1, received(0, 5), Outcome::none);
  EXPECT_EQ(elsewhere.stalled().likely_cause, "");
}

TEST(Diagnosis, AMessageForARankOutsideOfTheRingIsNoCause) {
  Job job(3);
  job.call(1, sent(0, 4), Outcome::good);
  job.call(1, received(2, 0), Outcome::none);
  job.call(2, received(1, 0), Outcome::none);
  job.call(0, received(1, 3), Outcome::none);
  expect(job.stalled(), FaultClass::deadlock, {1, 2});
  EXPECT_EQ(job.stalled().likely_cause, "") << "rank 1 may send with tag 3 once rank 2 has answered";
}

TEST(Diagnosis, ATagIsToldWhereTheOthersWaitInACollective) {
  Job job(3);
  job.call(1, sent(0, 4), Outcome::good);
  job.call(0, received(1, 3), Outcome::none);
  for (const int rank : {1, 2}) job.call(rank, {}, Outcome::none);
  EXPECT_EQ(job.stalled().culprits, std::vector<int>{0});
  EXPECT_EQ(job.stalled().likely_cause, "rank 1 sent to rank 0 with tag 4; rank 0 waits for tag 3");
}

TEST(Diagnosis, WhereReceivesAreForgottenOnlyAMessageOfTheWaitCounts) {
  const auto forget = [](Job& job) { job.at(0).groups[0].calls.erase(job.at(0).groups[0].calls.begin()); };
  Job before = job_of_two_tags();
  forget(before);
  EXPECT_EQ(before.stalled().likely_cause, "") << "a receive that is forgotten may have taken the message";
  Job meanwhile(2);
  meanwhile.call(0, received(1, 3), Outcome::none);
  meanwhile.call(1, sent(0, 4), Outcome::good);
  meanwhile.call(1, received(0, 5), Outcome::none);
  forget(meanwhile);
  EXPECT_EQ(meanwhile.stalled().likely_cause, "rank 1 sent to rank 0 with tag 4; rank 0 waits for tag 3");
  meanwhile.call(0, {}, Outcome::good);  // by another thread, and in the place of another call
  EXPECT_EQ(meanwhile.stalled().likely_cause, "");
}

// Any other rank could end the receive: it waits for those that make no call, also over a network.
TEST(Diagnosis, AReceiveFromAnyRankWaitsForTheRanksThatMakeNoCall) {
  Job job(4);
  for (int rank = 0; rank < 4; ++rank) job.at(rank).groups[0].backend = "ucx";
  job.call(0, {.kind = CallKind::recv_anysource}, Outcome::none);
  for (const int worker : {1, 2}) job.at(worker).process.state = 'R';
  job.call(3, {.kind = CallKind::recv, .root = 0}, Outcome::none);
  expect(job.stalled(), FaultClass::slow, {1, 2});
  // Who has left sends nothing more, and that is no fault while another worker goes on.
  job.end(1, 0, -1);
  expect(job.stalled(), FaultClass::slow, {2});
  job.end(2, 0, -1);
  expect(job.stalled(), FaultClass::left, {1, 2});
  // The ranks of another host may send.
  Job part(3);
  for (int rank = 0; rank < 3; ++rank) part.at(rank).groups[0].backend = "ucx";
  part.call(0, {.kind = CallKind::recv_anysource}, Outcome::none);
  part.ranks.pop_back();
  expect(part.stalled(), FaultClass::unknown, {});
  // All wait for each other.
  Job ring(3);
  for (int rank = 0; rank < 3; ++rank) {
    ring.at(rank).groups[0].backend = "ucx";
    ring.call(rank, {.kind = rank == 0 ? CallKind::recv_anysource : CallKind::recv, .root = rank == 0 ? -1 : 0},
              Outcome::none);
  }
  expect(ring.stalled(), FaultClass::deadlock, {0, 1, 2});
}

// A pipeline: the cause has posted the receive of what comes back, and does something else.
TEST(Diagnosis, AReceiveThatWasPostedEarlyIsNoWait) {
  for_each_cause([](Job& job, int cause) {
    const int other = (cause + 1) % job.size();
    for (RankTable& rank : job.ranks) rank.process.system_call = "futex";
    job.call(cause, {.kind = CallKind::recv, .root = other}, Outcome::none);
    job.call(other, {.kind = CallKind::recv, .line = 13, .root = cause}, Outcome::none);
    Job barrier = job;
    for (Job* const each : {&job, &barrier}) {
      if (each == &barrier) each->others_call(cause, Outcome::none, {.kind = CallKind::barrier});
      each->at(cause).process.system_call = "nanosleep";
      const Diagnosis found = each->stalled();
      expect(found, FaultClass::blocked, {cause});
      EXPECT_TRUE(found.certain);
      each->at(cause).process.system_call = "";
      each->at(cause).process.state = 'R';
      expect(each->stalled(), FaultClass::slow, {cause});
    }
    EXPECT_EQ(job.stalled().call->place.line, "train.py:13 (main)");
    // Where the look shows nothing of one rank alone, they disagree.
    job.at(other).process.state = 'R';
    expect(job.stalled(), FaultClass::deadlock, {std::min(cause, other), std::max(cause, other)});
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
}  // namespace gradwire::observe::diagnosis_test

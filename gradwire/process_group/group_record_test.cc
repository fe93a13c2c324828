// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What the flight recorder keeps of the calls on a group: every method, how calls ended, calls under way, duplicates
// and parts, calls of a lane, and groups of users. Ranks are threads, so this process's recorder holds all of them.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>

#include "gradwire/base/environment.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/observe/flight_recorder.h"
#include "gradwire/observe/flight_table.h"
#include "gradwire/process_group/init.h"
#include "gradwire/process_group/lane_scope.h"
#include "gradwire/process_group/process_group.h"
#include "gradwire/store/prefix_store.h"
#include "tests/support/ranks.h"

namespace gradwire::group_record_test {
namespace {

using observe::CallKind;
using observe::CallRow;
using observe::Outcome;

// The table of the group with this name, on one rank.
std::optional<observe::GroupTable> table_of(const std::string& name, int rank) {
  const auto table = observe::read_flight_memory(observe::flight_memory());
  if (!table) return std::nullopt;
  for (const auto& group : table->groups) {
    if (group.name == name && group.rank == rank) return group;
  }
  return std::nullopt;
}

std::vector<CallRow> calls_of(const std::string& name, int rank) {
  const auto table = table_of(name, rank);
  return table ? table->calls : std::vector<CallRow>();
}

// Runs `body` on `size` threads, each with its rank of a group of this name.
void on_ranks(const std::string& name, int size, const std::function<void(ProcessGroup& group)>& body) {
  test_support::run_ranks("threads", size, [&](int rank, const std::shared_ptr<Store>& store) {
    const auto group = make_process_group("threads", std::make_shared<PrefixStore>(name, store), rank, size);
    group->set_group_name(name);
    body(*group);
  });
}

// Groups tell the recorder which rank the process is, for programs without RANK.
TEST(GroupRecord, WithoutRanksInTheEnvironmentTheRecorderHasThoseOfTheLargestGroup) {
  on_ranks("of nine", 9, [](ProcessGroup& group) { group.barrier()->wait(); });
  const auto table = observe::read_flight_memory(observe::flight_memory());
  ASSERT_TRUE(table.has_value());
  EXPECT_GE(table->world, environment("RANK") ? 1 : 9);
  EXPECT_TRUE(table->rank >= 0 && table->rank < table->world) << table->rank;
}

TEST(GroupRecord, EveryMethodIsKeptWithItsArguments) {
  on_ranks("methods", 2, [](ProcessGroup& group) {
    const auto floats = [](std::int64_t count) { return at::ones({count}); };
    BroadcastOptions broadcast;
    broadcast.root = 1;
    group.broadcast({floats(3)}, broadcast)->wait();
    group.all_reduce({at::ones({4}, at::kDouble), at::ones({5}, at::kDouble)})->wait();
    ReduceOptions reduce;
    reduce.root = 1;
    group.reduce({floats(6)}, reduce)->wait();
    group.all_gather({{floats(2), floats(2)}}, {floats(2)})->wait();
    group.all_gather_into_tensor(floats(4), floats(2))->wait();
    group.reduce_scatter({floats(2)}, {{floats(2), floats(2)}})->wait();
    group.reduce_scatter_tensor(floats(2), floats(4))->wait();
    group.all_to_all({floats(1), floats(1)}, {floats(1), floats(1)})->wait();
    group.all_to_all_single(floats(4), floats(4))->wait();
    group.barrier()->wait();
    if (group.rank() == 0) {
      group.send({floats(7)}, 1, 5)->wait();
      group.send({floats(7)}, 1, 6)->wait();
    } else {
      group.recv({floats(7)}, 0, 5)->wait();
      group.recv_anysource({floats(7)}, 6)->wait();
    }
    group.monitored_barrier(Milliseconds(60000));
    group.allocate(8, at::kFloat);
  });
  for (int rank = 0; rank < 2; ++rank) {
    const auto calls = calls_of("methods", rank);
    const std::vector<CallKind> kinds = {CallKind::broadcast,
                                         CallKind::all_reduce,
                                         CallKind::reduce,
                                         CallKind::all_gather,
                                         CallKind::all_gather_into_tensor,
                                         CallKind::reduce_scatter,
                                         CallKind::reduce_scatter_tensor,
                                         CallKind::all_to_all,
                                         CallKind::all_to_all_single,
                                         CallKind::barrier,
                                         rank == 0 ? CallKind::send : CallKind::recv,
                                         rank == 0 ? CallKind::send : CallKind::recv_anysource,
                                         CallKind::monitored_barrier,
                                         CallKind::allocate};
    ASSERT_EQ(calls.size(), kinds.size());
    std::uint64_t sequence = 0;
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      EXPECT_EQ(name_of(calls[i].kind), name_of(kinds[i]));
      EXPECT_EQ(calls[i].outcome, Outcome::good) << name_of(kinds[i]);
      EXPECT_EQ(calls[i].sequence, is_message(kinds[i]) ? 0 : ++sequence);
      EXPECT_EQ(calls[i].message_tag, i == 10 ? 5 : i == 11 ? 6 : -1) << name_of(kinds[i]);
      EXPECT_FALSE(calls[i].place.module.empty()) << name_of(kinds[i]);
    }
    EXPECT_EQ(calls[0].root, 1);
    EXPECT_EQ(calls[0].count, 3U);
    EXPECT_EQ(calls[0].bytes, 12U);
    EXPECT_EQ(calls[1].count, 9U);
    EXPECT_EQ(calls[1].dtype, static_cast<std::uint8_t>(DType::f64));
    EXPECT_EQ(calls[2].root, 1);
    EXPECT_EQ(calls[10].root, 1 - rank) << "the peer";
    EXPECT_EQ(calls[10].count, 7U);
    EXPECT_EQ(calls[13].count, 8U);
  }
}

TEST(GroupRecord, ACallIsUnderWayUntilItsWorkEndsAndACallRunsAfterThoseBeforeIt) {
  on_ranks("under way", 2, [](ProcessGroup& group) {
    if (group.rank() == 0) {
      const auto received = group.recv({at::ones({1})}, 1);
      const auto first = group.all_reduce({at::ones({1})});
      const auto second = group.barrier();
      auto calls = calls_of("under way", 0);
      ASSERT_EQ(calls.size(), 3U);
      for (const CallRow& call : calls) EXPECT_EQ(call.outcome, Outcome::none);
      EXPECT_EQ(calls[2].started, 0) << "the barrier waits in the queue";
      group.send({at::ones({1})}, 1)->wait();
      first->wait();
      second->wait();
      received->wait();
      calls = calls_of("under way", 0);
      for (const CallRow& call : calls) EXPECT_EQ(call.outcome, Outcome::good);
      EXPECT_GT(calls[2].started, calls[2].called);
      return;
    }
    group.recv({at::ones({1})}, 0)->wait();  // rank 0 has looked
    group.all_reduce({at::ones({1})})->wait();
    group.barrier()->wait();
    group.send({at::ones({1})}, 0)->wait();
  });
}

TEST(GroupRecord, AnErrorIsKeptWithItsKind) {
  on_ranks("errors", 2, [](ProcessGroup& group) {
    const auto work = group.all_reduce({at::ones({group.rank() == 0 ? 4 : 5})});
    EXPECT_THROW(work->wait(), Error);
    EXPECT_THROW(group.barrier()->wait(), Error);
    group.shutdown();
    EXPECT_THROW(group.barrier(), InvalidArgument);
  });
  bool mismatch = false;
  for (int rank = 0; rank < 2; ++rank) {
    const auto calls = calls_of("errors", rank);
    ASSERT_EQ(calls.size(), 3U);
    mismatch = mismatch || calls[0].outcome == Outcome::mismatch;
    EXPECT_TRUE(calls[0].outcome == Outcome::mismatch || calls[0].outcome == Outcome::peer);
    EXPECT_NE(calls[1].outcome, Outcome::good);
    EXPECT_EQ(calls[2].outcome, Outcome::refused);
  }
  EXPECT_TRUE(mismatch);
}

// The paths say from which group they come, so that ranks find their common groups.
TEST(GroupRecord, DuplicatesAndPartsAreNamedAfterTheirGroup) {
  on_ranks("family", 2, [](ProcessGroup& group) {
    const auto first = group.dup();
    const auto second = group.dup();
    const auto part = group.split(group.rank());
    second->set_group_name("member 1");  // a group has its name before its first call
    const auto nested = second->dup();
    int number = 0;
    for (const auto& each : {first, second, part, nested}) {
      each->set_group_name(concat("member ", number++));
      each->barrier()->wait();
    }
  });
  const auto suffix = [](const std::string& name, int rank) {
    const auto table = table_of(name, rank);
    const std::string path = table ? table->path : "";
    return path.substr(std::min(path.find('.'), path.size()));
  };
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(suffix("member 0", rank), ".dup1");
    EXPECT_EQ(suffix("member 1", rank), ".dup2");
    EXPECT_EQ(suffix("member 3", rank), ".dup2.dup1");
  }
  const auto calls = calls_of("family", 0);
  ASSERT_EQ(calls.size(), 3U);
  EXPECT_EQ(calls[0].kind, CallKind::dup);
  EXPECT_EQ(calls[2].kind, CallKind::split);
}

TEST(GroupRecord, ACallOnALaneIsKeptByTheDuplicateWithItsTag) {
  on_ranks("original", 2, [](ProcessGroup& group) {
    const std::vector<LaneScope::Route> routes = {{group.shared_from_this(), group.dup()}};
    routes[0].duplicate->set_group_name("lane");
    const LaneScope lane(routes, CallTag{3, 2, 0, 1});
    group.all_reduce({at::ones({1})});
    group.all_reduce({at::ones({1})});
  });
  const auto calls = calls_of("lane", 1);
  ASSERT_EQ(calls.size(), 2U);
  EXPECT_EQ(calls[1].tag, std::uint64_t{3} << 32 | 2 << 16 | 1 << 8 | 1);
  EXPECT_EQ(calls[1].outcome, Outcome::good);
  EXPECT_EQ(calls_of("original", 1).size(), 1U) << "the dup()";
}

// A Work that can only be waited for.
class SilentWork final : public Work {
 public:
  bool wait(Milliseconds) override { return true; }
};

// A group whose calls end when the test says so.
class UsersGroup final : public ProcessGroup {
 public:
  UsersGroup() : ProcessGroup(0, 1) {}
  Future future;
  bool silent = false;
  int asked = 0;

 protected:
  std::shared_ptr<Work> do_all_reduce(Tensors& tensors, const AllReduceOptions&) override {
    if (silent) return std::make_shared<SilentWork>();
    struct Asked final : Work {
      explicit Asked(UsersGroup& owner) : group(owner) {}
      Future future() override {
        ++group.asked;
        return group.future;
      }
      UsersGroup& group;
    };
    static_cast<void>(tensors);
    return std::make_shared<Asked>(*this);
  }
};

TEST(GroupRecord, OfAUsersGroupTheFutureTellsTheEndAndIsTakenForAsynchronousCallsOnly) {
  const auto group = std::make_shared<UsersGroup>();
  group->set_group_name("user's");
  const auto last = [] { return calls_of("user's", 0).back(); };
  for (const bool fails : {false, true}) {
    group->future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors());
    group->all_reduce({at::ones({1})});
    EXPECT_EQ(last().outcome, Outcome::none);
    if (fails) {
      group->future->setError(std::make_exception_ptr(TimeoutError("rank 1 did not come", {1})));
    } else {
      group->future->markCompleted(c10::IValue(Tensors()));
    }
    EXPECT_EQ(last().outcome, fails ? Outcome::timeout : Outcome::good);
    EXPECT_EQ(last().peers, fails ? 2U : 0U);
  }
  const int asked = group->asked;
  AllReduceOptions waits;
  waits.async = false;
  group->all_reduce({at::ones({1})}, waits);
  EXPECT_EQ(group->asked, asked);
  EXPECT_EQ(last().outcome, Outcome::unknown);
  group->silent = true;
  group->all_reduce({at::ones({1})});
  EXPECT_EQ(last().outcome, Outcome::unknown);
  EXPECT_THROW(group->reduce({at::ones({1})}), UnsupportedError);
  EXPECT_EQ(last().outcome, Outcome::refused);
}

std::string text_of_error(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return describe(error);
  }
  return "no error";
}

void expect_holds(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << "\nin: " << text;
}

// The number of the last call of the group on this rank, as the launcher's report shows it.
std::uint64_t number_of_last_call(const std::string& name, int rank) { return number_of(calls_of(name, rank).back()); }

// The ranks are threads of one process, so their paths differ.
std::string path_of(const std::string& name, int rank) { return table_of(name, rank).value().path; }

// Errors and diagnoses speak of one call in one way: the method that was called, its number, the path of the group.
TEST(GroupRecord, AnErrorNamesTheCallAsTheRecordDoes) {
  on_ranks("named", 2, [](ProcessGroup& group) {
    const at::Tensor two = at::ones({2});
    group.all_reduce({at::ones({1}), at::ones({3})})->wait();
    if (group.rank() == 0) {
      BroadcastOptions wrong;
      wrong.root = 5;
      EXPECT_THROW(group.broadcast({two}, wrong), InvalidArgument) << "a refused call takes no number";
    }
    group.all_to_all_single(at::empty({2}), two)->wait();
    const auto made = group.dup();
    const std::string mine = text_of_error([&] {
      group.rank() == 0 ? group.all_gather_into_tensor(at::empty({4}), two)->wait()
                        : group.all_gather_into_tensor(at::empty({6}), at::ones({3}))->wait();
    });
    EXPECT_EQ(number_of_last_call("named", group.rank()), 4U);
    expect_holds(mine, {"MismatchError: ", "ranks disagree about all_gather_into_tensor (call 4 of group ",
                        concat("all_gather_into_tensor (call 4 of group ", path_of("named", group.rank()), ")"),
                        "rank 0 called all_gather(2 f32)", "rank 1 called all_gather(3 f32)"});
  });
}

TEST(GroupRecord, AMessageFromARankThatLeftNamesTheGroup) {
  on_ranks("no sender", 2, [](ProcessGroup& group) {
    if (group.rank() == 1) return group.shutdown();
    const std::string error = text_of_error([&] { group.recv({at::ones({3})}, 1)->wait(); });
    expect_holds(error, {concat("PeerError: recv (group ", path_of("no sender", 0), "): "), "rank 1 left the group",
                         "; all ranks must make the same calls"});
  });
}

TEST(GroupRecord, ARankThatLeavesIsNamedWithTheGroupTheCallTheBucketAndWhatToDo) {
  on_ranks("left", 2, [](ProcessGroup& group) {
    group.barrier()->wait();
    if (group.rank() == 1) return group.shutdown();
    AllReduceOptions options;
    options.tag = {.iteration = 7, .bucket = 2, .stage = 1};
    for (const bool async : {true, false}) {
      options.async = async;
      const std::string error = text_of_error([&] { group.all_reduce({at::ones({3})}, options)->wait(); });
      expect_holds(error, {concat("PeerError: all_reduce (call 2 of group ", path_of("left", 0),
                                  ", iteration 7 bucket 2 stage 1) on rank 0 of 2: rank 1 left the group"),
                           "; all ranks must make the same calls"});
    }
  });
}

}  // namespace
}  // namespace gradwire::group_record_test

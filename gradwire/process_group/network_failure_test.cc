// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Deaths in groups over the engines that cross hosts, Gloo and UCX, flat and hybrid. Proves: every survivor names the
// rank that died, in the numbers of the group that was called, during the rendezvous and later; a write to a dead peer
// ends nobody by a signal; after an error the group is let go of at once.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <limits>
#include <regex>

#include "gradwire/base/error.h"
#include "gradwire/base/trace.h"
#include "gradwire/observe/flight_recorder.h"
#include "gradwire/process_group/deadly_store_test_support.h"
#include "gradwire/process_group/init.h"
#include "gradwire/process_group/outer_ranks_internal.h"
#include "tests/support/named_group.h"
#include "tests/support/ranks.h"

namespace gradwire::network_failure_test {
namespace {

using test_support::collect_ranks;
using test_support::DeadlyStore;
using test_support::RankEnd;
using test_support::run_ranks;

// The groups' timeout, which nothing here may wait for.
constexpr Milliseconds kLong = std::chrono::minutes(5);

// Ranks that are processes, two on each host as GRADWIRE_HOST says.
class NetworkFailure : public ::testing::TestWithParam<std::string> {
 protected:
  static std::shared_ptr<ProcessGroup> make(const std::shared_ptr<Store>& store, int rank, int size) {
    at::set_num_threads(1);
    ::setenv("GRADWIRE_HOST", concat("host", rank / 2).c_str(), 1);
    return make_process_group(GetParam(), store, rank, size, kLong);
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, NetworkFailure, ::testing::ValuesIn(test_support::network_backends()),
                         test_support::name_case);

// All but the victim have ended well, and have seen what they expected.
void expect_survival(const std::vector<RankEnd>& ends, int victim) {
  for (std::size_t rank = 0; rank < ends.size(); ++rank) {
    if (static_cast<int>(rank) == victim) continue;
    EXPECT_FALSE(ends[rank].failed) << "rank " << rank << ": " << ends[rank].message;
  }
}

// With `and_call`: the error also says which call of which group failed, as the launcher's report does, and what to do.
void expect_named(const std::function<void()>& call, int victim, bool and_call = false) {
  try {
    call();
    ADD_FAILURE() << "the call came to its end without rank " << victim;
  } catch (const PeerError& error) {
    EXPECT_EQ(error.peers(), std::vector<int>{victim}) << error.what();
    // A process whose parent recorded calls before the fork records nothing, and does not number calls.
    if (!and_call || observe::flight_memory().empty()) return;
    const std::string text = error.what();
    EXPECT_TRUE(std::regex_search(text, std::regex(R"(\w+ \(call \d+ of group )"))) << text;
    EXPECT_NE(text.find("; start the job again, or "), std::string::npos) << text;
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another exception: " << describe(error);
  }
}

using Collective = std::function<void(ProcessGroup&)>;

const std::vector<Collective>& collectives() {
  static const std::vector<Collective> all{
      [](ProcessGroup& group) { group.all_reduce({at::ones({10})})->wait(); },
      [](ProcessGroup& group) { group.all_reduce({at::ones({300'000})})->wait(); },
      [](ProcessGroup& group) { group.all_gather_into_tensor(at::empty({group.size()}), at::ones({1}))->wait(); },
      [](ProcessGroup& group) { group.barrier()->wait(); },
  };
  return all;
}

TEST_P(NetworkFailure, EverySurvivorNamesTheRankThatDied) {
  constexpr int kSize = 6;
  for (int victim = 0; victim < kSize; ++victim) {
    const Collective& call = collectives()[static_cast<std::size_t>(victim) % collectives().size()];
    const auto ends = collect_ranks("processes", kSize, [&](int rank, const std::shared_ptr<Store>& store) {
      const auto group = make(store, rank, kSize);
      group->all_reduce({at::ones({10})})->wait();
      if (rank == victim) ::raise(SIGKILL);
      // A call may still find all it needs of the victim.
      expect_named(
          [&] {
            for (;;) call(*group);
          },
          victim, /*and_call=*/true);
      expect_named([&] { group->barrier()->wait(); }, victim);
    });
    expect_survival(ends, victim);
  }
}

// The ranks of other hosts hear of it from the first rank of its host. The reason is as DDP's, which quotes an error.
TEST_P(NetworkFailure, RanksThatPassAnAbortOnAreNotNamed) {
  run_ranks("processes", 4, [](int rank, const std::shared_ptr<Store>& store) {
    const auto group = make(store, rank, 4);
    if (group->name() != "hybrid") return;
    group->barrier()->wait();
    if (rank == 1) {
      group->abort("the backward pass failed: PeerError: somebody else");
      return;
    }
    expect_named(
        [&] {
          for (;;) group->all_reduce({at::ones({10})})->wait();
        },
        1);
  });
}

// From the first call after the rank has said who it is.
TEST_P(NetworkFailure, ADeathInTheRendezvousIsNamedAndNotWaitedFor) {
  constexpr int kSize = 4;
  const auto began = std::chrono::steady_clock::now();
  for (const int calls : {5, 6, 8, 10, 12, 16, 20, 26, 34}) {
    const int victim = calls / 2 % kSize;
    SCOPED_TRACE(concat("rank ", victim, " dies at its call ", calls));
    const auto ends = collect_ranks("processes", kSize, [&](int rank, const std::shared_ptr<Store>& store) {
      expect_named(
          [&] {
            const auto mine = rank == victim ? std::make_shared<DeadlyStore>(store, calls) : store;
            const auto group = make(mine, rank, kSize);
            if (rank == victim) ::raise(SIGKILL);  // it needed fewer calls
            for (;;) group->all_reduce({at::ones({10})})->wait();
          },
          victim);
    });
    expect_survival(ends, victim);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - began, kLong);
}

// Kills this process where the `calls`th collective of any of its channels begins, with those of the rendezvous.
void die_at_collective(int calls) {
  static std::atomic<int> left{0};
  left = calls;
  trace::set_sink(
      [](void*, const trace::Event& event) noexcept {
        if (std::string_view(event.name) == "collective.entry" && --left == 0) ::raise(SIGKILL);
      },
      nullptr);
}

// Every step of making the group, of a duplicate, and of a part in which the ranks have other numbers; over Gloo, whose
// collectives are none of ours, every step within the host.
TEST_P(NetworkFailure, ADeathAtAnyStepOfMakingAHybridGroupIsNamed) {
  if (!GetParam().starts_with("hybrid/")) return;
  constexpr int kVictim = 3;  // the second of the second host
  bool died = true;
  for (int calls = 1; died; ++calls) {
    ASSERT_LT(calls, 100);
    SCOPED_TRACE(concat("at collective ", calls));
    const auto ends = collect_ranks("processes", 4, [&](int rank, const std::shared_ptr<Store>& store) {
      if (rank == kVictim) die_at_collective(calls);
      const auto make_all = [&] {
        const auto group = make(store, rank, 4);
        const auto copy = group->dup();
        return std::vector{group, copy, group->split(0, -rank)};
      };
      if (rank == kVictim) {
        make_all();
        trace::set_sink(nullptr, nullptr);
        return;
      }
      expect_named(
          [&] {
            const auto groups = make_all();
            for (;;) groups[0]->all_reduce({at::ones({10})})->wait();
          },
          kVictim);
    });
    expect_survival(ends, kVictim);
    died = ends[kVictim].failed;
  }
}

// Before the rank has come to the place where the ranks of the new group meet, and later.
TEST_P(NetworkFailure, ADeathOnTheWayToADuplicateOrAPartIsNamed) {
  constexpr int kSize = 4;
  constexpr int kVictim = 3;
  const auto began = std::chrono::steady_clock::now();
  for (const bool splits : {false, true}) {
    for (const int calls : {1, 3, 8, 20}) {
      SCOPED_TRACE(concat(splits ? "split" : "dup", ", at call ", calls, " of the store"));
      const auto ends = collect_ranks("processes", kSize, [&](int rank, const std::shared_ptr<Store>& store) {
        const auto mine = std::make_shared<DeadlyStore>(store, std::numeric_limits<int>::max());
        const auto group = make(mine, rank, kSize);
        group->barrier()->wait();
        if (rank == kVictim) mine->die_at(calls);
        expect_named(
            [&] {
              const auto made = splits ? group->split(0, -rank) : group->dup();
              if (rank == kVictim) ::raise(SIGKILL);  // it needed fewer calls
              for (;;) group->all_reduce({at::ones({10})})->wait();
            },
            kVictim);
      });
      expect_survival(ends, kVictim);
    }
  }
  EXPECT_LT(std::chrono::steady_clock::now() - began, kLong);
}

TEST_P(NetworkFailure, AnAbortEndsADuplicateThatOthersWaitFor) {
  const auto began = std::chrono::steady_clock::now();
  run_ranks("processes", 4, [](int rank, const std::shared_ptr<Store>& store) {
    const auto group = make(store, rank, 4);
    group->barrier()->wait();
    if (rank == 1) return group->abort("enough of it");
    expect_named([&] { group->dup(); }, 1);
  });
  EXPECT_LT(std::chrono::steady_clock::now() - began, kLong);
}

// The survivor writes all the time; each death finds it elsewhere.
TEST_P(NetworkFailure, AWriteToADeadPeerIsAnErrorAndNoSignal) {
  for (int round = 0; round < 6; ++round) {
    const auto ends = collect_ranks("processes", 4, [&](int rank, const std::shared_ptr<Store>& store) {
      const auto group = make(store, rank, 4);
      int calls = 0;
      const at::Tensor tensor = at::ones({1000});
      BroadcastOptions options;
      options.root = 3;
      try {
        for (;; ++calls) {
          if (rank == 0 && calls == 50 + 7 * round) ::raise(SIGKILL);
          group->broadcast({tensor}, options)->wait();
        }
      } catch (const PeerError&) {
      }
    });
    expect_survival(ends, 0);
  }
}

TEST_P(NetworkFailure, AfterADeathTheGroupIsLetGoOfAtOnce) {
  const auto ends = collect_ranks("processes", 4, [&](int rank, const std::shared_ptr<Store>& store) {
    auto group = make(store, rank, 4);
    const std::string ready = concat("ready/", rank);
    const std::string over = "over";
    if (rank == 1) {
      BroadcastOptions options;
      options.root = 1;
      const auto busy = group->broadcast({at::ones({std::int64_t{4} << 20})}, options);
      const auto message = group->recv({at::ones({1})}, 0, 1);
      store->set(ready, "");
      expect_named([&] { message->wait(); }, 0);
      EXPECT_EQ(internal::peers_of(message->exception()), std::vector<int>{0});
      const auto future = message->future();
      future->wait();
      ASSERT_TRUE(future->hasError());
      EXPECT_EQ(internal::peers_of(future->exception_ptr()), std::vector<int>{0});
      const auto began = std::chrono::steady_clock::now();
      group->abort("after the error");
      group.reset();
      EXPECT_THROW(busy->wait(), Error);
      EXPECT_LT(std::chrono::steady_clock::now() - began, kLong / 2);
      store->set(over, "");
      return;
    }
    const std::string first = "ready/1";
    store->wait(std::span(&first, 1), kLong);
    if (rank == 0) ::raise(SIGKILL);
    store->wait(std::span(&over, 1), kLong);  // alive, and in no call
    ::_exit(0);
  });
  expect_survival(ends, 0);
}

TEST_P(NetworkFailure, MemoryThatIsRefusedEndsNothing) {
  run_ranks("processes", 4, [](int rank, const std::shared_ptr<Store>& store) {
    const auto group = make(store, rank, 4);
    if (group->name() != "hybrid") return;  // networks' memory is any memory
    if (rank == 2) ::setenv("GRADWIRE_SHM_FOLDER", "/nowhere/at/all", 1);
    EXPECT_THROW(group->allocate(1000, at::kFloat), ResourceError);
    const at::Tensor tensor = at::ones({10});
    group->all_reduce({tensor})->wait();
    EXPECT_TRUE(at::equal(tensor, at::full({10}, 4.0)));
  });
}

TEST_P(NetworkFailure, ADuplicateThatOneHostHasNoMemoryForIsRefusedToAllAndEndsNothing) {
  run_ranks("processes", 4, [](int rank, const std::shared_ptr<Store>& store) {
    const auto group = make(store, rank, 4);
    if (group->name() != "hybrid") return;
    if (rank == 2) ::setenv("GRADWIRE_SHM_FOLDER", "/nowhere/at/all", 1);
    EXPECT_THROW(group->dup(), ResourceError);
    if (rank == 2) ::unsetenv("GRADWIRE_SHM_FOLDER");
    for (const auto& each : {group, group->dup()}) {
      const at::Tensor tensor = at::ones({10});
      each->all_reduce({tensor})->wait();
      EXPECT_TRUE(at::equal(tensor, at::full({10}, 4.0)));
    }
  });
}

TEST_P(NetworkFailure, APartThatOneHostHasNoMemoryForIsRefusedToAllAndEndsNothing) {
  run_ranks("processes", 4, [](int rank, const std::shared_ptr<Store>& store) {
    const auto group = make(store, rank, 4);
    if (group->name() != "hybrid") return;
    // Two new groups: of the hosts' second ranks, and of their first ranks, of which one is refused its memory.
    if (rank == 2) ::setenv("GRADWIRE_SHM_FOLDER", "/nowhere/at/all", 1);
    EXPECT_THROW(group->split(rank % 2), ResourceError);
    if (rank == 2) ::unsetenv("GRADWIRE_SHM_FOLDER");
    const auto part = group->split(rank % 2);
    for (const auto& each : {group, part}) {
      const at::Tensor tensor = at::ones({10});
      each->all_reduce({tensor})->wait();
      EXPECT_TRUE(at::equal(tensor, at::full({10}, static_cast<float>(each->size()))));
    }
  });
}

// Gloo multiplies no complex numbers.
TEST_P(NetworkFailure, AReductionThatTheEngineLacksIsRefusedToAllAndEndsNothing) {
  run_ranks("processes", 4, [](int rank, const std::shared_ptr<Store>& store) {
    const auto group = make(store, rank, 4);
    const auto multiply = [&](std::int64_t count) {
      const at::Tensor tensor = at::full({count}, 2.0, at::kComplexFloat);
      group->all_reduce({tensor}, {{}, ReduceOp::product()})->wait();
      ReduceOptions to_last;
      to_last.op = ReduceOp::product();
      to_last.root = 3;
      const at::Tensor one = at::full({count}, 2.0, at::kComplexFloat);
      group->reduce({one}, to_last)->wait();
      const at::Tensor part = at::empty({count}, at::kComplexFloat);
      ReduceScatterOptions scattered;
      scattered.op = ReduceOp::product();
      group->reduce_scatter_tensor(part, at::full({4 * count}, 2.0, at::kComplexFloat), scattered)->wait();
      EXPECT_TRUE(at::equal(tensor, at::full({count}, 16.0, at::kComplexFloat)));
      EXPECT_TRUE(at::equal(part, tensor));
      EXPECT_TRUE(rank != 3 || at::equal(one, tensor));
    };
    for (const std::int64_t count : {10, 30'000}) {
      if (GetParam().ends_with("gloo")) {
        EXPECT_THROW(multiply(count), UnsupportedError);
      } else {
        multiply(count);
      }
    }
    const at::Tensor tensor = at::ones({10}, at::kComplexFloat);
    group->all_reduce({tensor})->wait();
    EXPECT_TRUE(at::equal(tensor, at::full({10}, 4.0, at::kComplexFloat)));
  });
}

}  // namespace
}  // namespace gradwire::network_failure_test

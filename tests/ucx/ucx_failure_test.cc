// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Tests that ranks over ucx which are killed or stopped, in whatever they do, are named by all others, and by them
// alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "tests/chaos/trigger.h"
#include "tests/conformance/child_process.h"
#include "tests/conformance/conformance.h"
#include "tests/support/temporary_folder.h"

namespace gradwire::testing {
namespace {

constexpr int kRanks = 3;
constexpr World kWorld{Kind::ucx, kRanks};

// Something of everything until it fails.
void use_until_failure(RankContext& context, std::size_t count) {
  std::vector<float> data(count, 1.0F);
  std::vector<float> all(count * kRanks);
  std::vector<void*> outputs;
  for (std::size_t rank = 0; rank < kRanks; ++rank) outputs.push_back(all.data() + rank * count);
  for (;;) {
    context.channel().all_reduce(data.data(), count, DType::f32, ReduceOp::max(), guarded());
    context.channel().all_gather(data.data(), outputs, count, DType::f32, guarded());
    context.channel().barrier(guarded());
  }
}

void expect_to_name(RankContext& context, int victim, const std::function<void()>& call) {
  const auto start = Deadline::Clock::now();
  try {
    call();
    ADD_FAILURE() << "the call returned without rank " << victim;
  } catch (const PeerError& error) {
    EXPECT_EQ(error.peers(), std::vector<int>{victim}) << error.what();
    expect_contains(error.what(), concat("rank ", victim));
  }
  EXPECT_TRUE(Deadline::Clock::now() - start < kGuard / 2) << "rank " << context.rank() << " waited for its deadline";
}

class Group : public ::testing::Test {
 protected:
  ChildProcess rank(int number, const std::function<void(RankContext&)>& body) const {
    return ChildProcess(concat("rank ", number), [this, number, body] {
      const auto context = process_rank(kWorld, number, folder_.path() + "/store");
      body(*context);
      context->leave();
    });
  }
  // The others of `victim`, which join and go on until they fail.
  std::vector<ChildProcess> others(int victim, std::size_t count) const {
    std::vector<ChildProcess> all;
    for (int number = 0; number < kRanks; ++number) {
      if (number == victim) continue;
      all.push_back(rank(number, [=](RankContext& context) {
        expect_to_name(context, victim, [&] {
          context.join();
          use_until_failure(context, count);
        });
      }));
    }
    return all;
  }
  const TemporaryFolder folder_;
};

struct Death {
  const char* name;
  const char* point;
  int occurrence;
  std::size_t count;
};
class DeathAt : public Group, public ::testing::WithParamInterface<Death> {};
INSTANTIATE_TEST_SUITE_P(Points, DeathAt,
                         ::testing::Values(Death{"begin", "rendezvous.begin", 0, 10},
                                           Death{"connected", "rendezvous.connected", 0, 10},
                                           Death{"firstEntry", "collective.entry", 0, 10},
                                           Death{"entry", "collective.entry", 5, 1000},
                                           Death{"largeEntry", "collective.entry", 5, 1'000'000},
                                           Death{"reduce", "collective.reduce", 3, 1000},
                                           Death{"largeReduce", "collective.reduce", 3, 3'000'000},
                                           Death{"exit", "collective.exit", 7, 100'000}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(DeathAt, IsNamedByAllOthersAndByNoOtherName) {
  const Death death = GetParam();
  for (int victim = 0; victim < kRanks; ++victim) {
    SCOPED_TRACE(concat("rank ", victim, " dies"));
    ChildProcess dying = rank(victim, [&](RankContext& context) {
      const Trigger trigger(death.point, death.occurrence, [] { std::raise(SIGKILL); });
      context.join();
      use_until_failure(context, death.count);
    });
    std::vector<ChildProcess> all = others(victim, death.count);
    for (ChildProcess& child : all) child.expect_success(Deadline::after(2 * kGuard));
    const ChildProcess::Ending ending = dying.wait(Deadline::after(kGuard));
    EXPECT_TRUE(ending.ended && !ending.exited && ending.code == SIGKILL) << ending.failures;
    std::filesystem::remove(folder_.path() + "/store");  // the next victim gets a fresh one
  }
}

TEST_F(Group, AStoppedRankIsNamedLongBeforeTheDeadline) {
  ::setenv("GRADWIRE_HEARTBEAT_MS", "3000", 1);
  ChildProcess stopped = rank(1, [](RankContext& context) {
    const Trigger trigger("collective.entry", 20, [] { std::raise(SIGSTOP); });
    context.join();
    // It was declared dead meanwhile, and finds its connections closed.
    EXPECT_THROW(use_until_failure(context, 1000), PeerError);
  });
  std::vector<ChildProcess> all = others(1, 1000);
  ::unsetenv("GRADWIRE_HEARTBEAT_MS");
  for (ChildProcess& child : all) child.expect_success(Deadline::after(2 * kGuard));
  stopped.signal(SIGCONT);
  stopped.expect_success(Deadline::after(2 * kGuard));
}

TEST_F(Group, RanksThatComputeForLongerThanTheSilenceAreAlive) {
  ::setenv("GRADWIRE_HEARTBEAT_MS", "2000", 1);
  std::vector<ChildProcess> all;
  for (int number = 0; number < kRanks; ++number) {
    all.push_back(rank(number, [](RankContext& context) {
      context.join();
      const Deadline computing = Deadline::after(Milliseconds(3000));
      while (context.rank() == 1 && !computing.expired()) {
      }
      EXPECT_NO_THROW(context.channel().barrier(guarded()));
      context.meet("done");
    }));
  }
  ::unsetenv("GRADWIRE_HEARTBEAT_MS");
  for (ChildProcess& child : all) child.expect_success(Deadline::after(2 * kGuard));
}

// Rank 0's partners are partners of ranks that do not know rank 0's value from the store.
TEST(WideGroup, LivesWhereTheSilenceOfOneRankIsLonger) {
  constexpr int kWide = 20;
  static constexpr Milliseconds kShort{6000};
  const TemporaryFolder folder;
  std::vector<ChildProcess> all;
  for (int number = 0; number < kWide; ++number) {
    ::setenv("GRADWIRE_HEARTBEAT_MS", number == 0 ? "600000" : std::to_string(kShort.count()).c_str(), 1);
    all.emplace_back(concat("rank ", number), [&folder, number] {
      const auto context = process_rank({Kind::ucx, kWide}, number, folder.path() + "/store");
      context->join();
      std::this_thread::sleep_for(kShort + kShort / 3);  // nothing but signs of life
      EXPECT_NO_THROW(context->channel().barrier(guarded()));
      context->meet("done");
      context->leave();
    });
  }
  ::unsetenv("GRADWIRE_HEARTBEAT_MS");
  for (ChildProcess& child : all) child.expect_success(Deadline::after(2 * kGuard));
}

TEST_F(Group, WhatALeavingRankHasSentArrivesHoweverMuchItIs) {
  constexpr int kMessages = 25;
  constexpr std::size_t kBytes = 30'000;
  std::vector<ChildProcess> all;
  all.push_back(rank(0, [](RankContext& context) {
    context.join();
    std::vector<std::byte> sent(kBytes);
    std::vector<std::shared_ptr<Request>> sends;
    for (std::uint32_t number = 0; number < kMessages; ++number) {
      std::fill(sent.begin(), sent.end(), static_cast<std::byte>(number));
      for (const int to : {1, 2})
        context.channel().isend(sent.data(), kBytes, to, number)->wait(Deadline::after(kGuard));
    }
    context.leave();  // at once
    context.store().set("left", "");
  }));
  for (const int number : {1, 2}) {
    all.push_back(rank(number, [](RankContext& context) {
      context.join();
      context.store().wait(std::vector<std::string>{"left"}, kGuard);
      std::vector<std::byte> taken(kBytes);
      for (std::uint32_t message = 0; message < kMessages; ++message) {
        context.channel().irecv(taken.data(), kBytes, 0, message)->wait(Deadline::after(kGuard));
        EXPECT_EQ(std::count(taken.begin(), taken.end(), static_cast<std::byte>(message)),
                  static_cast<std::ptrdiff_t>(kBytes));
      }
    }));
  }
  for (ChildProcess& child : all) child.expect_success(Deadline::after(2 * kGuard));
}

TEST_F(Group, ASecretThatDiffersIsAnErrorOnAllRanksThatNamesTheVariable) {
  std::vector<ChildProcess> all;
  for (int number = 0; number < kRanks; ++number) {
    ::setenv("GRADWIRE_SECRET", number == 1 ? "another" : "the job's", 1);
    all.push_back(rank(number, [](RankContext& context) {
      expect_contains(expect_throw<MismatchError>([&] { context.join(); }), "GRADWIRE_SECRET");
    }));
  }
  ::unsetenv("GRADWIRE_SECRET");
  for (ChildProcess& child : all) child.expect_success(Deadline::after(2 * kGuard));
}

}  // namespace
}  // namespace gradwire::testing

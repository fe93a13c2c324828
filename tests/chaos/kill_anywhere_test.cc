// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// kill -9 from outside at any moment of any collective: where kill_test.cc chooses the point in the code, here the
// clock chooses. The output says in which calls the kills landed and how long the survivors took to learn of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <iostream>
#include <iterator>
#include <map>
#include <sstream>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "tests/chaos/leftovers.h"
#include "tests/chaos/shared_page.h"
#include "tests/conformance/child_process.h"
#include "tests/conformance/random_calls.h"

namespace gradwire::testing {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kKills = 60;
constexpr std::size_t kLargest = 60'000;  // elements
constexpr double kGuardMs = 20'000;       // the promise is 2 s, the rest is for slow machines
constexpr std::size_t kBetween = std::size(RandomCalls::kKinds);

// What all processes see: how far the victim is, and when it was killed.
struct Progress {
  std::atomic<int> calls{0};                // that the victim has begun
  std::atomic<std::size_t> kind{kBetween};  // of the call it is in
  DeathClock death;
};
using SharedProgress = SharedPage<Progress>;

struct Kill {
  int ranks;
  int victim;
  std::uint64_t seed;
  int after_calls;                    // the victim has begun that many
  std::chrono::nanoseconds and_then;  // and then so long
};

void call_until_failure(RankContext& context, const Kill& kill, const SharedProgress& progress) {
  Random random(kill.seed);
  RandomCalls calls(context, context.channel(), kLargest);
  while (!::testing::Test::HasFailure()) {
    const std::size_t kind = calls.draw(random);
    if (context.rank() == kill.victim) {
      progress->kind.store(kind);
      progress->calls.fetch_add(1);
    }
    calls.make();
    if (context.rank() == kill.victim) progress->kind.store(kBetween);
  }
}

void survive(RankContext& context, const Kill& kill, const SharedProgress& progress) {
  context.join();
  try {
    call_until_failure(context, kill, progress);
  } catch (const PeerError& error) {
    const double ms = progress->death.milliseconds_since();
    ChildProcess::note(concat(ms));
    EXPECT_TRUE(progress->death.stamped()) << error.what();
    EXPECT_LT(ms, kGuardMs);
    EXPECT_EQ(error.peers(), std::vector<int>{kill.victim}) << error.what();
    expect_contains(error.what(), concat("rank ", kill.victim));
  }
  EXPECT_THROW(context.channel().barrier(guarded()), PeerError);
  context.leave();
}

// Plays one kill; where it landed, and the survivors' times in ms.
std::size_t play(const Kill& kill, std::vector<double>& times) {
  SCOPED_TRACE(concat("rank ", kill.victim, " of ", kill.ranks, " after ", kill.after_calls, " calls and ",
                      kill.and_then.count(), " ns, seed ", kill.seed));
  const TemporaryFolder folder;
  const std::string store = folder.path() + "/store";
  const Leftovers leftovers;
  const SharedProgress progress;
  std::size_t landed = kBetween;
  {
    std::vector<ChildProcess> children;
    for (int rank = 0; rank < kill.ranks; ++rank) {
      children.emplace_back(concat("rank ", rank), [&, rank] {
        const std::unique_ptr<RankContext> context = process_rank({Kind::shm, kill.ranks}, rank, store);
        if (rank != kill.victim) return survive(*context, kill, progress);
        context->join();
        call_until_failure(*context, kill, progress);
      });
    }
    const Deadline guard = Deadline::after(kGuard);
    while (progress->calls.load() < kill.after_calls && !guard.expired()) {
    }
    const auto begin = Clock::now();
    while (Clock::now() - begin < kill.and_then) {
    }
    landed = progress->kind.load();
    progress->death.stamp();
    children[static_cast<std::size_t>(kill.victim)].signal(SIGKILL);
    for (int rank = 0; rank < kill.ranks; ++rank) {
      ChildProcess& child = children[static_cast<std::size_t>(rank)];
      const ChildProcess::Ending ending = child.wait(guard);
      if (rank == kill.victim) {
        EXPECT_TRUE(ending.ended && !ending.exited && ending.code == SIGKILL) << "no kill: " << ending.failures;
        EXPECT_EQ(ending.failures, "");
        continue;
      }
      child.expect_success(guard);
      std::istringstream notes(ending.notes);
      for (double ms = 0; notes >> ms;) times.push_back(ms);
    }
  }
  leftovers.expect_none();
  return landed;
}

TEST(KillAnywhere, SurvivorsLearnWhoDied) {
  Random random(20240611U);
  std::map<std::size_t, int> landed;
  std::vector<double> times;
  std::size_t survivors = 0;
  for (int i = 0; i < kKills && !HasFailure(); ++i) {
    const int ranks = 2 + i % 4;
    survivors += static_cast<std::size_t>(ranks - 1);
    ++landed[play({ranks, static_cast<int>(random.below(static_cast<std::size_t>(ranks))), random.next(),
                   1 + static_cast<int>(random.below(40)), std::chrono::nanoseconds(random.below(300'000))},
                  times)];
  }
  EXPECT_EQ(times.size(), survivors);
  std::sort(times.begin(), times.end());
  for (const auto& [kind, count] : landed) {
    std::cout << count << " kills in " << (kind == kBetween ? "no call" : RandomCalls::kKinds[kind]) << '\n';
  }
  if (times.empty()) return;
  std::cout << kKills << " kills in all; survivors' error after min " << times.front() << " / median "
            << times[times.size() / 2] << " / max " << times.back() << " ms; the promise is 2000 ms\n";
}

}  // namespace
}  // namespace gradwire::testing

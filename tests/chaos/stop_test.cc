// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A rank that is stopped (SIGSTOP) is not dead: the others wait until their deadline and name it. When it goes on, it
// fails too, and memory that the others own by then stays as it is.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "tests/chaos/leftovers.h"
#include "tests/chaos/phases.h"
#include "tests/conformance/child_process.h"
#include "tests/conformance/conformance.h"

namespace gradwire::testing {
namespace {

struct Stop {
  Phase phase;
  int ranks;
  std::size_t count;
};

constexpr Milliseconds kDeadline{700};

void reduce_until_failure(RankContext& context, std::vector<float>& data, Milliseconds timeout,
                          const std::function<void()>& between) {
  for (;;) {
    std::fill(data.begin(), data.end(), 1.0F);
    context.channel().all_reduce(data.data(), data.size(), DType::f32, ReduceOp::sum(), with_timeout(timeout));
    between();
  }
}

void outlast(RankContext& context, const Stop& stop) {
  const int stopped = stop.ranks - 1;
  context.join();
  std::vector<float> data(stop.count);
  try {
    reduce_until_failure(context, data, kDeadline, [] {});
  } catch (const TimeoutError& error) {
    EXPECT_EQ(error.peers(), std::vector<int>{stopped}) << error.what();
    expect_contains(error.what(), concat("rank ", stopped));
  } catch (const PeerError& error) {
    // Another survivor's deadline came first; its reason names the stopped rank.
    expect_contains(error.what(), concat("rank ", stopped));
  }
  // The buffer is this rank's own again.
  std::fill(data.begin(), data.end(), -5.0F);
  context.meet("the stopped rank may go on");  // the test lets it
  EXPECT_TRUE(std::all_of(data.begin(), data.end(), [](float x) { return x == -5.0F; })) << "the late rank wrote here";
  EXPECT_THROW(context.channel().check(), Error);
  context.leave();
}

void stop_and_go_on(RankContext& context, const Stop& stop) {
  FaultInjector injector(stop.phase, 5, SIGSTOP);
  context.join();
  std::vector<float> data(stop.count);
  try {
    reduce_until_failure(context, data, kGuard, [&] { injector.between_calls(); });
  } catch (const PeerError&) {
  } catch (const TimeoutError&) {  // the others' reason, told on
  }
  EXPECT_THROW(context.channel().check(), Error);
  context.meet("the stopped rank may go on");
  context.leave();
}

void play(const Stop& stop) {
  SCOPED_TRACE(concat("stopped in ", name_of(stop.phase), ", ", stop.ranks, " ranks, count ", stop.count));
  const TemporaryFolder folder;
  const std::string store = folder.path() + "/store";
  const World world{Kind::shm, stop.ranks};
  std::vector<ChildProcess> children;
  for (int rank = 0; rank < stop.ranks; ++rank) {
    children.emplace_back(concat("rank ", rank), [&, rank] {
      const std::unique_ptr<RankContext> context = process_rank(world, rank, store);
      rank == stop.ranks - 1 ? stop_and_go_on(*context, stop) : outlast(*context, stop);
    });
  }
  // The survivors come to meet() after their deadline and count themselves in; then the stopped one is let on.
  {
    const std::unique_ptr<RankContext> watcher = process_rank(world, 0, store);
    const Deadline guard = Deadline::after(kGuard);
    while (watcher->store().add("meet/the stopped rank may go on", 0) < stop.ranks - 1 && !guard.expired()) {
      const std::vector<std::string> never{"never"};
      EXPECT_THROW(watcher->store().wait(never, Milliseconds(20)), TimeoutError);
    }
  }
  children.back().signal(SIGCONT);
  for (ChildProcess& child : children) child.expect_success(Deadline::after(kGuard));
}

class Stopped : public ::testing::TestWithParam<Phase> {};

TEST_P(Stopped, IsNamedByTheDeadlineAndFailsWhenItGoesOn) {
  for (const int ranks : {2, 3}) {
    for (const std::size_t count : {std::size_t{10}, std::size_t{400'003}}) play({GetParam(), ranks, count});
  }
}

INSTANTIATE_TEST_SUITE_P(All, Stopped, ::testing::Values(Phase::entry, Phase::reduce, Phase::exit, Phase::between),
                         [](const auto& info) {
                           return info.param == Phase::between ? "between" : name_of(info.param);
                         });

}  // namespace
}  // namespace gradwire::testing

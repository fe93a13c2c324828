// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Proves: over shm, what ranks wait for ends with the death of a rank, whatever the other ranks do meanwhile.
#include <array>
#include <atomic>
#include <csignal>
#include <functional>
#include <thread>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "tests/conformance/child_process.h"
#include "tests/conformance/conformance.h"
#include "tests/support/temporary_folder.h"

namespace gradwire::testing {
namespace {

using Body = std::function<void(RankContext&)>;

Request::Status finish(const std::shared_ptr<Request>& request) { return request->wait(Deadline::after(kGuard)); }

// Runs each body on a rank of its own, a process. Rank 1 may be killed; the others must succeed.
void run_ranks(const std::array<Body, 3>& bodies) {
  const TemporaryFolder folder;
  std::vector<ChildProcess> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back(concat("rank ", rank), [&, rank] {
      const auto context = process_rank({Kind::shm, 3}, rank, folder.path() + "/store");
      context->join();
      bodies[static_cast<std::size_t>(rank)](*context);
      context->leave();
    });
  }
  const Deadline guard = Deadline::after(2 * kGuard);
  ranks[0].expect_success(guard);
  ranks[2].expect_success(guard);
  EXPECT_TRUE(ranks[1].wait(guard).ended);
}

void die_after_meeting(RankContext& context) {
  context.meet("ready");
  ::raise(SIGKILL);
}

void expect_names_rank_1(const std::function<void()>& wait) {
  try {
    wait();
    ADD_FAILURE() << "what needs rank 1 went well";
  } catch (const PeerError& error) {
    EXPECT_EQ(error.peers(), std::vector<int>{1}) << error.what();
  }
}

// Rank 2 enters a barrier that rank 0 does not come to before rank 2 has told it that the barrier ended.
void expect_barrier_ends(const Body& rank_1) {
  run_ranks({[](RankContext& context) {
               context.meet("ready");
               context.store().get("the barrier ended");
               EXPECT_THROW(context.channel().barrier(guarded()), PeerError);
             },
             rank_1,
             [](RankContext& context) {
               context.meet("ready");
               expect_names_rank_1([&] { context.channel().barrier(with_timeout(kGuard / 3)); });
               context.store().set("the barrier ended", "");
             }});
}

TEST(Death, EndsACollectiveThatALivingRankHasNotEnteredYet) { expect_barrier_ends(die_after_meeting); }

TEST(Leave, EndsACollectiveThatAnotherRankHasNotEnteredYet) {
  expect_barrier_ends([](RankContext& context) { context.meet("ready"); });
}

TEST(Death, IsNoticedWhateverOthersSend) {
  run_ranks({[](RankContext& context) {
               Channel& channel = context.channel();
               std::atomic<bool> stop{false};
               char value = 0;
               const auto receive = channel.irecv(&value, 1, 1, 5);
               std::thread taker([&] {
                 char taken[64];
                 while (!stop) finish(channel.irecv(taken, sizeof(taken), 2, 7));
                 finish(channel.isend(taken, 1, 2, 8));
                 // The sender may be behind by what it keeps under way.
                 try {
                   for (;;) finish(channel.irecv(taken, sizeof(taken), 2, 7));
                 } catch (const PeerError&) {
                 }
               });
               context.meet("ready");
               expect_names_rank_1([&] { receive->wait(Deadline::after(kGuard / 3)); });
               stop = true;
               taker.join();
             },
             die_after_meeting,
             [](RankContext& context) {
               Channel& channel = context.channel();
               const char sent[64] = {};
               char end = 0;
               const auto told = channel.irecv(&end, 1, 0, 8);
               context.meet("ready");
               while (!told->done()) finish(channel.isend(sent, sizeof(sent), 0, 7));
             }});
}

TEST(Death, EndsReceivesFromAnyRank) {
  run_ranks({[](RankContext& context) {
               Channel& channel = context.channel();
               char value = 0;
               const auto receive = channel.irecv(&value, 1, kAnySource, 5);
               context.meet("ready");
               expect_names_rank_1([&] { receive->wait(Deadline::after(kGuard / 3)); });
               // Messages that were here before are received; after that, each such receive ends at once.
               char kept = 0;
               finish(channel.irecv(&kept, 1, 2, 6));
               expect_names_rank_1([&] { finish(channel.irecv(&value, 1, kAnySource, 5)); });
               finish(channel.isend(&value, 1, 2, 8));
             },
             die_after_meeting,
             [](RankContext& context) {
               char value = 0;
               context.meet("ready");
               finish(context.channel().isend(&value, 1, 0, 6));
               finish(context.channel().irecv(&value, 1, 0, 8));
             }});
}

TEST(Leave, DoesNotEndReceivesFromAnyRank) {
  run_ranks({[](RankContext& context) {
               Channel& channel = context.channel();
               char value = 0;
               const auto receive = channel.irecv(&value, 1, kAnySource, 5);
               context.meet("ready");
               // Rank 1 is known to be gone before rank 2 sends.
               EXPECT_THROW(finish(channel.irecv(&value, 1, 1, 7)), PeerError);
               EXPECT_FALSE(receive->done());
               finish(channel.isend(&value, 1, 2, 8));
               EXPECT_EQ(receive->wait(Deadline::after(kGuard)).source, 2);
             },
             [](RankContext& context) { context.meet("ready"); },
             [](RankContext& context) {
               char value = 0;
               context.meet("ready");
               finish(context.channel().irecv(&value, 1, 0, 8));
               finish(context.channel().isend(&value, 1, 0, 5));
             }});
}

}  // namespace
}  // namespace gradwire::testing

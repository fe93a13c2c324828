// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Deadlines, abort, and ranks that leave.
#include <chrono>
#include <functional>
#include <latch>
#include <memory>
#include <set>
#include <string_view>
#include <thread>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/interrupt.h"
#include "gradwire/base/strings.h"
#include "gradwire/base/trace.h"
#include "tests/conformance/conformance.h"
#include "tests/support/repeating_store.h"

namespace gradwire::testing {
namespace {

GRADWIRE_CONFORMANCE_SUITE(Failure, 2, 3, 5, kWideWorld);
GRADWIRE_CONFORMANCE_SUITE(FailureAlone, 1, 2);

// Without loopback worlds, whose mailboxes know nothing of a rank's end before its process leaves.
class LateFailure : public ConformanceTest {};
INSTANTIATE_TEST_SUITE_P(All, LateFailure,
                         ::testing::Values(World{Kind::threads, 3}, World{Kind::shm, 3}, World{Kind::ucx, 3},
                                           World{Kind::ucx, kWideWorld}, World{Kind::mpi, 3}, World{Kind::mpi, 5}),
                         world_name);

class SharedRendezvous : public ConformanceTest {};
INSTANTIATE_TEST_SUITE_P(All, SharedRendezvous, ::testing::Values(World{Kind::threads, 2}, World{Kind::shm, 2}),
                         world_name);

using Clock = std::chrono::steady_clock;

void all_reduce(Channel& channel, std::size_t count, const CallOptions& options) {
  std::vector<float> data(count, 1.0F);
  channel.all_reduce(data.data(), count, DType::f32, ReduceOp::sum(), options);
}

TEST_P(Failure, ARankThatDoesNotComeIsNamedByTheDeadline) {
  for (const std::size_t count : {std::size_t{4}, std::size_t{300'000}}) {
    run([&](RankContext& context) {
      const int absent = context.size() - 1;
      Channel& channel = context.channel();
      all_reduce(channel, count, guarded());
      context.meet("all are there");
      if (context.rank() != absent) {
        std::string text;
        const auto expect_absent = [&](const std::exception& error, const std::vector<int>& peers) {
          text = error.what();
          EXPECT_EQ(peers, std::vector<int>{absent}) << text;
          expect_contains(text, "all_reduce");
          expect_contains(text, concat("rank ", absent));
        };
        bool late = false;
        try {
          all_reduce(channel, count, with_timeout(Milliseconds(1000)));
          ADD_FAILURE() << "the call returned without rank " << absent;
        } catch (const TimeoutError& error) {
          expect_absent(error, error.peers());
        } catch (const PeerError& error) {
          // In a wide world a rank may hear of another's deadline before its own has passed.
          EXPECT_EQ(context.size(), kWideWorld);
          expect_absent(error, error.peers());
          late = true;
        }
        // At its end, with the first reason.
        const auto again = [&](const std::function<void()>& call) {
          return late ? expect_throw<PeerError>(call) : expect_throw<TimeoutError>(call);
        };
        EXPECT_EQ(again([&] { all_reduce(channel, count, guarded()); }), text);
        EXPECT_EQ(again([&] { channel.check(); }), text);
      }
      context.meet("timed out");
      if (context.rank() == absent) {
        // The one that comes too late may still find all it needs in place, once; then it learns that the others have
        // given up, at once.
        const auto start = Clock::now();
        std::string text;
        try {
          all_reduce(channel, count, guarded());
          all_reduce(channel, count, guarded());
          ADD_FAILURE() << "a call returned that the others never came to";
        } catch (const PeerError& error) {
          text = error.what();
          EXPECT_EQ(error.peers(), std::vector<int>{absent}) << text;
        } catch (const TimeoutError& error) {  // the others' reason, told on
          text = error.what();
          EXPECT_EQ(error.peers(), std::vector<int>{absent}) << text;
        }
        EXPECT_FALSE(text.empty());
        EXPECT_TRUE(Clock::now() - start < kGuard / 2) << text;
      }
      context.meet("end");
    });
  }
}

TEST_P(LateFailure, AnInterruptedCallNamesItself) {
  run([&](RankContext& context) {
    Channel& channel = context.channel();
    channel.barrier(guarded());
    context.meet("all are there");
    if (context.rank() == 0) {
      const InterruptCheckScope at_once([]() noexcept { return true; });
      const std::string text = expect_throw<AbortedError>([&] { channel.barrier(guarded()); });
      expect_contains(text, "barrier");
      expect_contains(text, "interrupted on this rank");
      EXPECT_EQ(text.find("tag"), std::string::npos) << text;
      EXPECT_EQ(expect_throw<AbortedError>([&] { channel.check(); }), text);
    }
    context.meet("interrupted");
  });
}

// Most ranks wait for ranks that wait themselves; those are not to be named.
TEST(WideFailure, OfSeveralRanksThatDoNotComeNoOtherRankIsNamed) {
  run_world({Kind::loopback, kWideWorld}, [](RankContext& context) {
    const std::set<int> absent{4, 11, 18};
    context.meet("all are there");
    if (!absent.contains(context.rank())) {
      std::vector<int> named;
      try {
        context.channel().barrier(with_timeout(Milliseconds(2000)));
        ADD_FAILURE() << "the call returned without ranks 4, 11 and 18";
      } catch (const TimeoutError& error) {
        named = error.peers();
      } catch (const PeerError& error) {
        named = error.peers();
      }
      EXPECT_FALSE(named.empty());
      for (const int rank : named) EXPECT_TRUE(absent.contains(rank)) << rank << " was there";
    }
    context.meet("timed out");
  });
}

TEST_P(Failure, AZeroTimeoutEndsAtOnceAndDoesNotHang) {
  run([](RankContext& context) {
    if (context.rank() == 0) {
      expect_throw<TimeoutError>([&] { context.channel().barrier(with_timeout(Milliseconds(0))); });
    }
    context.meet("end");
  });
}

TEST_P(Failure, AbortFromAnotherThreadWakesABlockedCall) {
  run([](RankContext& context) {
    Channel& channel = context.channel();
    if (context.rank() == 0) {
      std::thread blocked([&] {
        const std::string text = expect_throw<AbortedError>([&] { channel.barrier(guarded()); });
        expect_contains(text, "the user said so");
      });
      context.meet("about to abort");
      channel.abort("the user said so");
      channel.abort("a second reason");
      blocked.join();
      expect_contains(expect_throw<AbortedError>([&] { channel.check(); }), "the user said so");
      expect_contains(expect_throw<AbortedError>([&] { all_reduce(channel, 4, guarded()); }), "the user said so");
      context.meet("aborted");
    } else {
      context.meet("about to abort");
      context.meet("aborted");
      // Ranks that need the aborted one's part fail with its reason; no deadline is near.
      const auto start = Clock::now();
      try {
        all_reduce(channel, 4, guarded());
        ADD_FAILURE() << "the call returned without rank 0";
      } catch (const PeerError& error) {
        EXPECT_EQ(error.peers(), std::vector<int>{0}) << error.what();
        expect_contains(error.what(), "the user said so");
      } catch (const MismatchError&) {
        // Rank 0 had entered a barrier by then: that is a mismatch too, and it may be seen first.
      }
      EXPECT_TRUE(Clock::now() - start < kGuard / 2);
    }
    context.meet("end");
  });
}

TEST_P(Failure, AReceiveFromARankThatFailedBecauseOfAnotherNamesThatOther) {
  run([](RankContext& context) {
    Channel& channel = context.channel();
    std::byte byte{};
    const auto receive = context.rank() > 1 ? channel.irecv(&byte, 1, 1, 0) : nullptr;
    context.meet("all wait");
    std::vector<int> peers;
    if (context.rank() == 0) {
      channel.abort("rank 0 gives up");
      peers = {0};
    } else {
      try {
        receive != nullptr ? static_cast<void>(receive->wait(Deadline::after(kGuard)))
                           : all_reduce(channel, 4, guarded());
      } catch (const PeerError& error) {
        peers = error.peers();
      }
    }
    EXPECT_EQ(peers, std::vector<int>{0});
    context.meet("end");
  });
}

// A reason may be another group's failure, with the ranks at fault before it.
TEST_P(Failure, AReasonThatQuotesErrorsReachesEveryRankWhole) {
  run([](RankContext& context) {
    const std::string reason = "[at fault 7] a step: PeerError: rank 3 aborted its channel: PeerError: no disk";
    context.meet("all are there");
    if (context.rank() == 0) {
      context.channel().abort(reason);
    } else {
      expect_contains(expect_throw<PeerError>([&] { all_reduce(context.channel(), 4, guarded()); }), reason);
    }
    context.meet("end");
  });
}

// The others come right after the abort, before the thread that waits has woken.
TEST_P(Failure, ACallUnderWayFailsWhenItsRankAbortsThoughTheOthersComeNext) {
  run([](RankContext& context) {
    for (int round = 0; round < 20; ++round) {
      const std::unique_ptr<Channel> channel = context.channel().duplicate(guarded());
      if (context.rank() == 0) {
        std::latch begun(2);
        std::thread blocked([&] {
          begun.arrive_and_wait();
          expect_throw<AbortedError>([&] { channel->barrier(guarded()); });
        });
        begun.arrive_and_wait();
        std::this_thread::yield();
        channel->abort("enough");
        context.meet(concat("aborted in round ", round));
        blocked.join();
      } else {
        context.meet(concat("aborted in round ", round));
        try {
          channel->barrier(guarded());  // rank 0's part may have come before it aborted
        } catch (const PeerError& error) {
          expect_contains(error.what(), "enough");
        }
      }
      context.meet(concat("end of round ", round));
    }
  });
}

TEST_P(Failure, AbortWakesRequestsUnderWay) {
  run([](RankContext& context) {
    Channel& channel = context.channel();
    int value = 0;
    if (context.rank() == 0) {
      const auto own = channel.irecv(&value, sizeof value, 1, 3);
      std::thread blocked([&] { expect_throw<AbortedError>([&] { own->wait(Deadline::after(kGuard)); }); });
      context.meet("receives posted");
      channel.abort("enough");
      blocked.join();
    } else if (context.rank() == 1) {
      const auto receive = channel.irecv(&value, sizeof value, 0, 3);
      context.meet("receives posted");
      expect_contains(expect_throw<PeerError>([&] { receive->wait(Deadline::after(kGuard)); }), "enough");
    } else {
      context.meet("receives posted");
    }
    context.meet("end");
  });
}

// Waits for a request on each of `channels`: in the first for anyone's message, in the second for one of rank `gone`,
// in the third for rank `gone` to take one. Each must end at once with a PeerError that names the rank and says `why`.
void expect_requests_to_fail(std::span<const std::unique_ptr<Channel>> channels, int gone, const char* why) {
  Bytes memory(200'000);
  const auto expect_failure = [&](const char* what, const std::shared_ptr<Request>& request) {
    const auto start = Clock::now();
    try {
      request->wait(Deadline::after(kGuard));
      ADD_FAILURE() << what << " ended without rank " << gone;
    } catch (const PeerError& error) {
      EXPECT_EQ(error.peers(), std::vector<int>{gone}) << what << ": " << error.what();
      expect_contains(error.what(), why);
    } catch (const std::exception& error) {
      ADD_FAILURE() << what << ": " << describe(error);
    }
    EXPECT_TRUE(Clock::now() - start < kGuard / 2) << what;
  };
  if (channels.size() > 2) {
    expect_failure("a receive of anyone", channels[2]->irecv(memory.data(), memory.size(), kAnySource, 3));
  }
  expect_failure("a receive", channels[0]->irecv(memory.data(), memory.size(), gone, 3));
  expect_failure("a send", channels[1]->isend(memory.data(), memory.size(), gone, 3));
}

// Also of ranks that were not connected with rank 0 when it aborted.
TEST_P(LateFailure, RequestsThatBeginAfterAnAbortEndWithItsReason) {
  run([](RankContext& context) {
    std::vector<std::unique_ptr<Channel>> channels;
    for (int i = 0; i < 3; ++i) channels.push_back(context.channel().duplicate(guarded()));
    if (context.rank() == 0) {
      for (const auto& channel : channels) channel->abort("enough of it");
    }
    context.meet("aborted");
    if (context.rank() != 0) expect_requests_to_fail(channels, 0, "enough of it");
    context.meet("failed");
    channels.clear();
    context.meet("end");
  });
}

// What this rank does before the last step of duplicate().
thread_local std::function<void()> before_the_last_step;

void on_trace_point(void*, const trace::Event& event) noexcept {
  if (before_the_last_step && std::string_view(event.name) == "duplicate.last_step") before_the_last_step();
}

// The others may have the duplicate, or may yet get it.
TEST_P(LateFailure, ARankThatFailsInTheLastStepOfADuplicateIsMissedByNobodyUntilTheDeadline) {
  run([](RankContext& context) {
    constexpr int kAborter = 1;
    Channel& channel = context.channel();
    trace::set_sink(&on_trace_point, nullptr);
    context.meet("ready");
    if (context.rank() == kAborter) {
      std::thread other([&] {
        context.store().wait(std::vector<std::string>{"late"}, kGuard);
        std::this_thread::sleep_for(std::chrono::milliseconds(20));  // so that this rank waits for the late one
        channel.abort("enough");
      });
      expect_contains(expect_throw<AbortedError>([&] { channel.duplicate(guarded()); }), "enough");
      other.join();
      context.store().set("aborted", "");
    } else {
      if (context.rank() == context.size() - 1) {
        before_the_last_step = [&] {
          context.store().set("late", "");
          context.store().wait(std::vector<std::string>{"aborted"}, kGuard);
        };
      }
      const auto start = Clock::now();
      try {
        channel.duplicate(guarded())->barrier(guarded());
        ADD_FAILURE() << "the duplicate works without rank " << kAborter;
      } catch (const PeerError& error) {
        EXPECT_EQ(error.peers(), std::vector<int>{kAborter}) << error.what();
        expect_contains(error.what(), "enough");
      } catch (const std::exception& error) {
        ADD_FAILURE() << describe(error);
      }
      EXPECT_TRUE(Clock::now() - start < kGuard / 2);
      before_the_last_step = nullptr;
    }
    context.meet("end");
    trace::set_sink(nullptr, nullptr);
  });
}

TEST_P(LateFailure, RequestsThatBeginAfterARankHasLeftTheirChannelEndAtOnce) {
  run([](RankContext& context) {
    std::vector<std::unique_ptr<Channel>> channels;
    for (int i = 0; i < 2; ++i) channels.push_back(context.channel().duplicate(guarded()));
    if (context.rank() == 0) channels.clear();
    context.meet("left");
    if (context.rank() != 0) expect_requests_to_fail(channels, 0, "left");
    context.meet("end");
  });
}

// Also where those who wait for the rank that left had never been connected with it.
TEST_P(LateFailure, ARankThatHasLeftIsNoFailureToThoseWhoWaitForAnyone) {
  run([](RankContext& context) {
    if (context.rank() == 0) context.leave();
    context.meet("left");
    if (context.rank() != 0) {
      const int others = context.size() - 1;
      const int next = context.rank() % others + 1;
      int heard = -1;
      int value = 0;
      const auto anyone = context.channel().irecv(&heard, sizeof heard, kAnySource, 4);
      const auto start = Clock::now();
      try {
        context.channel().irecv(&value, sizeof value, 0, 3)->wait(Deadline::after(kGuard));
        ADD_FAILURE() << "a message came of a rank that had left";
      } catch (const PeerError& error) {
        EXPECT_EQ(error.peers(), std::vector<int>{0}) << error.what();
        expect_contains(error.what(), "left");
      }
      EXPECT_TRUE(Clock::now() - start < kGuard / 2);
      context.store().add("tried", 1);
      while (context.store().add("tried", 0) < others) std::this_thread::yield();
      const int mine = context.rank();
      const auto send = context.channel().isend(&mine, sizeof mine, next, 4);
      const Request::Status status = anyone->wait(Deadline::after(kGuard));
      EXPECT_EQ(status.source, heard);
      EXPECT_EQ(heard % others + 1, context.rank());
      send->wait(Deadline::after(kGuard));
    }
    context.meet("end");
  });
}

TEST_P(Failure, ARankThatLeavesWithoutItsPartIsNamed) {
  run([](RankContext& context) {
    const int leaver = context.size() - 1;
    all_reduce(context.channel(), 1000, guarded());
    if (context.rank() == leaver) {
      context.leave();
      return;
    }
    const auto start = Clock::now();
    std::string text;
    try {
      all_reduce(context.channel(), 1000, guarded());
      ADD_FAILURE() << "the call returned without rank " << leaver;
    } catch (const PeerError& error) {
      text = error.what();
      // A rank may hear of the leaver from another one that has failed already.
      expect_contains(text, concat("rank ", leaver));
      EXPECT_FALSE(error.peers().empty());
    }
    EXPECT_TRUE(Clock::now() - start < kGuard / 2);
    EXPECT_EQ(expect_throw<PeerError>([&] { context.channel().check(); }), text);
  });
}

TEST_P(Failure, ARankThatLeavesAfterItsLastCollectiveIsNoError) {
  for (const std::size_t count : {std::size_t{1}, std::size_t{1000}, std::size_t{500'000}}) {
    run([&](RankContext& context) {
      for (int round = 0; round < 5; ++round) all_reduce(context.channel(), count, guarded());
      // Rank 0 leaves at once, the others look again a little later.
      if (context.rank() == 0) return;
      EXPECT_NO_THROW(context.channel().check());
    });
  }
}

TEST_P(Failure, AMessageSentBeforeLeavingArrives) {
  run([](RankContext& context) {
    const Bytes sent = make_input(DType::u8, 5000, 1, 1);
    if (context.rank() == 1) {
      const auto send = context.channel().isend(sent.data(), sent.size(), 0, 2);
      send->wait(Deadline::after(kGuard));
      context.leave();
      context.meet("left");
      return;
    }
    if (context.rank() == 0) {
      Bytes received(sent.size());
      const auto receive = context.channel().irecv(received.data(), received.size(), 1, 2);
      receive->wait(Deadline::after(kGuard));
      EXPECT_EQ(difference(received.data(), sent, DType::u8), "");
      context.meet("left");
      // What was never sent does not come.
      const auto more = context.channel().irecv(received.data(), received.size(), 1, 2);
      expect_contains(expect_throw<PeerError>([&] { more->wait(Deadline::after(kGuard)); }), "rank 1");
      return;
    }
    context.meet("left");
  });
}

TEST_P(Failure, ADuplicateAbortsAlone) {
  run([](RankContext& context) {
    const std::unique_ptr<Channel> duplicate = context.channel().duplicate(guarded());
    if (context.rank() == 0) duplicate->abort("only this one");
    if (context.rank() != 0) {
      expect_contains(expect_throw<PeerError>([&] { duplicate->barrier(guarded()); }), "only this one");
    }
    all_reduce(context.channel(), 100, guarded());
  });
}

TEST_P(Failure, AnAbortDoesNotUndoCallsThatTheAborterHasFinished) {
  run([](RankContext& context) {
    // The others may still be on their way out of the call when the abort reaches them, but miss nothing of the
    // aborter's.
    for (int round = 0; round < 40; ++round) {
      const std::size_t count = round % 2 == 0 ? 10 : 50'000;
      const std::unique_ptr<Channel> duplicate = context.channel().duplicate(guarded());
      EXPECT_NO_THROW(all_reduce(*duplicate, count, guarded())) << "count " << count;
      if (context.rank() == 0) duplicate->abort("done with it");
    }
  });
}

TEST_P(Failure, AWorldMayBeMadeAgainAfterAFailure) {
  run_world_unjoined(world(), [](RankContext& context) {
    for (int generation = 0; generation < 3; ++generation) {
      context.join(generation);
      all_reduce(context.channel(), 10, guarded());
      context.meet(concat("reduced ", generation));
      if (context.rank() == generation % context.size()) context.channel().abort("planned");
      EXPECT_THROW(context.channel().barrier(guarded()), Error);
      context.meet(concat("generation ", generation));
    }
  });
}

// As a patient store's calls do when a reply is lost.
TEST_P(Failure, AWorldMeetsThoughItsStoreRepeatsEachCall) {
  run_world_unjoined(world(), [](RankContext& context) {
    context.wrap_store = [](std::shared_ptr<Store> store) {
      return std::make_shared<test_support::RepeatingStore>(std::move(store));
    };
    context.join();
    all_reduce(context.channel(), 10, guarded());
  });
}

// Rank 1 comes late, and stands still once it is known to have come. `context` is its RankContext.
constexpr Milliseconds kRendezvousLimit{4000};
void come_late_and_stand_still(void* context, const trace::Event& event) noexcept {
  if (event.rank != 1) return;
  const std::string_view point(event.name);
  if (point == "rendezvous.begin") std::this_thread::sleep_for(kRendezvousLimit * 3 / 4);
  if (point == "rendezvous.connected") static_cast<RankContext*>(context)->meet("rank 0 has given up");
}

TEST_P(SharedRendezvous, AllItsPhasesTogetherTakeItsLimitAtMost) {
  run_world_unjoined(world(), [](RankContext& context) {
    if (context.rank() == 1) trace::set_sink(&come_late_and_stand_still, &context);
    context.meet("begin");
    if (context.rank() == 1) {
      expect_throw<Error>([&] { context.join(); });
      trace::set_sink(nullptr, nullptr);
      return;
    }
    const auto began = Clock::now();
    expect_contains(expect_throw<TimeoutError>([&] { context.join(0, kRendezvousLimit); }), "rank 1");
    EXPECT_LT(Clock::now() - began, kRendezvousLimit * 3 / 2);
    context.meet("rank 0 has given up");
  });
}

TEST_P(FailureAlone, AbortEndsTheChannelOnThisRank) {
  run([](RankContext& context) {
    context.channel().check();
    context.meet("all are there");
    context.channel().abort("why not");
    float value = 1;
    for (int again = 0; again < 2; ++again) {
      expect_contains(expect_throw<AbortedError>([&] { context.channel().barrier(guarded()); }), "why not");
      expect_contains(expect_throw<AbortedError>([&] { context.channel().isend(&value, sizeof value, 0, 1); }),
                      "why not");
      expect_contains(expect_throw<AbortedError>([&] { context.channel().duplicate(guarded()); }), "why not");
      expect_contains(expect_throw<AbortedError>([&] { context.channel().allocate(64, guarded()); }), "why not");
    }
    context.meet("end");
  });
}

}  // namespace
}  // namespace gradwire::testing

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Sends and receives: matching, order, progress beside collectives, sizes.
#include <chrono>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <thread>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "tests/conformance/conformance.h"

namespace gradwire::testing {
namespace {

GRADWIRE_CONFORMANCE_SUITE(PointToPoint, 2, 3, 5, 8);
GRADWIRE_CONFORMANCE_SUITE(PointToPointSelf, 1, 2);
GRADWIRE_CONFORMANCE_SUITE(Unreceived, 2);

Bytes message(int from, int to, std::size_t bytes, std::uint64_t seed) {
  return make_input(DType::u8, bytes, from * 64 + to, seed);
}

Request::Status finish(const std::shared_ptr<Request>& request) { return request->wait(Deadline::after(kGuard)); }

void all_send_first(const World& world) {
  run_world(world, [](RankContext& context) {
    const std::size_t large = context.size() <= 3 ? std::size_t{8} << 20 : std::size_t{1} << 20;
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{4095}, std::size_t{65537}, large}) {
      SCOPED_TRACE(concat(bytes, " bytes"));
      std::vector<Bytes> sent, received;
      std::vector<std::shared_ptr<Request>> sends, receives;
      for (int peer = 0; peer < context.size(); ++peer) {
        sent.push_back(message(context.rank(), peer, bytes, bytes));
        received.emplace_back(bytes);
      }
      for (int peer = 0; peer < context.size(); ++peer) {
        if (peer == context.rank()) continue;
        sends.push_back(context.channel().isend(sent[static_cast<std::size_t>(peer)].data(), bytes, peer, 7));
      }
      for (int peer = 0; peer < context.size(); ++peer) {
        if (peer == context.rank()) continue;
        auto& buffer = received[static_cast<std::size_t>(peer)];
        receives.push_back(context.channel().irecv(buffer.data(), bytes, peer, 7));
        const Request::Status status = finish(receives.back());
        EXPECT_EQ(status.source, peer);
        EXPECT_EQ(status.bytes, bytes);
        EXPECT_EQ(difference(buffer.data(), message(peer, context.rank(), bytes, bytes), DType::u8), "");
      }
      for (const auto& send : sends) EXPECT_EQ(finish(send).bytes, bytes);
    }
  });
}

TEST_P(PointToPoint, AllSendFirstAndReceiveAfterWhateverTheSize) { all_send_first(world()); }

// Elsewhere large messages go both ways in turn: read out of the sender's memory, and in frames.
TEST_P(PointToPoint, AllSendFirstWhereNobodyReadsAPeersMemory) {
  const EnvironmentValue never("GRADWIRE_READ_PEERS", "0");
  all_send_first(world());
}
TEST_P(PointToPoint, AllSendFirstWhereAllReadTheirPeersMemory) {
  const EnvironmentValue always("GRADWIRE_READ_PEERS", "always");
  all_send_first(world());
}

// The receive must not take what has become of a buffer that its owner has given up and let go.
void give_up_and_free(const World& world) {
  run_world(world, [](RankContext& context) {
    constexpr std::size_t kBytes = std::size_t{4} << 20;
    if (context.rank() > 1) return;
    std::minstd_rand random(7);
    for (std::uint32_t round = 0; round < 40; ++round) {
      if (context.rank() == 0) {
        auto sent = std::make_unique<Bytes>(message(0, 1, kBytes, round));
        auto send = context.channel().isend(sent->data(), kBytes, 1, round);
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
        send.reset();  // given up, unless it has ended
        sent.reset();
        const std::byte next{1};
        finish(context.channel().isend(&next, 1, 1, 1000 + round));
        continue;
      }
      Bytes received(kBytes);
      std::byte next{0};
      const auto receive = context.channel().irecv(received.data(), kBytes, 0, round);
      finish(context.channel().irecv(&next, 1, 0, 1000 + round));
      try {
        receive->wait(Deadline::after(Milliseconds(100)));
        EXPECT_EQ(difference(received.data(), message(0, 1, kBytes, round), DType::u8), "") << "round " << round;
      } catch (const PeerError& error) {
        EXPECT_EQ(error.peers(), std::vector<int>{0});
      } catch (const TimeoutError&) {  // given up before the receive was there
      }
    }
  });
}

TEST_P(PointToPoint, ALargeSendThatIsGivenUpAndFreedEndsItsReceiveOrWasNeverMade) {
  const EnvironmentValue always("GRADWIRE_READ_PEERS", "always");
  give_up_and_free(world());
}
TEST_P(PointToPoint, ALargeSendInFramesThatIsGivenUpAndFreedEndsItsReceiveOrWasNeverMade) {
  const EnvironmentValue never("GRADWIRE_READ_PEERS", "0");
  give_up_and_free(world());
}

TEST_P(PointToPoint, TagsMatchOutOfOrderAndEqualTagsInOrder) {
  run([](RankContext& context) {
    const int next = (context.rank() + 1) % context.size();
    const int previous = (context.rank() + context.size() - 1) % context.size();
    constexpr std::uint32_t kTags = 5;
    constexpr int kEach = 4;
    std::vector<int> values(kTags * kEach);
    std::vector<std::shared_ptr<Request>> sends;
    for (int i = 0; i < kEach; ++i) {
      for (std::uint32_t tag = 0; tag < kTags; ++tag) {
        int& value = values[tag * kEach + static_cast<std::size_t>(i)];
        value = static_cast<int>(tag) * 100 + i;
        sends.push_back(context.channel().isend(&value, sizeof value, next, tag));
      }
    }
    // The last tag first; within a tag the order of sending.
    for (std::uint32_t tag = kTags; tag-- > 0;) {
      for (int i = 0; i < kEach; ++i) {
        int value = -1;
        finish(context.channel().irecv(&value, sizeof value, previous, tag));
        EXPECT_EQ(value, static_cast<int>(tag) * 100 + i);
      }
    }
    for (const auto& send : sends) finish(send);
  });
}

TEST_P(PointToPoint, AnySourceTellsWhoSent) {
  run([](RankContext& context) {
    constexpr int kEach = 3;
    int value = context.rank();
    if (context.rank() != 0) {
      for (int i = 0; i < kEach; ++i) finish(context.channel().isend(&value, sizeof value, 0, 3));
      context.channel().barrier(guarded());
      return;
    }
    std::vector<int> heard(static_cast<std::size_t>(context.size()), 0);
    for (int i = 0; i < kEach * (context.size() - 1); ++i) {
      int got = -1;
      const Request::Status status = finish(context.channel().irecv(&got, sizeof got, kAnySource, 3));
      EXPECT_EQ(status.source, got);
      ++heard[static_cast<std::size_t>(got)];
    }
    context.channel().barrier(guarded());
    for (int r = 1; r < context.size(); ++r) EXPECT_EQ(heard[static_cast<std::size_t>(r)], kEach) << "from rank " << r;
  });
}

TEST_P(PointToPoint, ReceivesPostedBeforeTheSends) {
  run([](RankContext& context) {
    constexpr std::size_t kBytes = 300'001;
    const int next = (context.rank() + 1) % context.size();
    const int previous = (context.rank() + context.size() - 1) % context.size();
    Bytes received(kBytes);
    const auto receive = context.channel().irecv(received.data(), kBytes, previous, 1);
    context.channel().barrier(guarded());
    EXPECT_FALSE(receive->done());
    context.channel().barrier(guarded());
    const Bytes sent = message(context.rank(), next, kBytes, 9);
    const auto send = context.channel().isend(sent.data(), kBytes, next, 1);
    finish(receive);
    EXPECT_TRUE(receive->done());
    finish(send);
    EXPECT_EQ(difference(received.data(), message(previous, context.rank(), kBytes, 9), DType::u8), "");
  });
}

TEST_P(PointToPoint, ASendThatWasCancelledBeforeItsReceiveIsNotReceived) {
  run([](RankContext& context) {
    Channel& channel = context.channel();
    const int next = (context.rank() + 1) % context.size();
    const int previous = (context.rank() + context.size() - 1) % context.size();
    constexpr std::size_t kBytes = 300'001;
    const Bytes cancelled = message(context.rank(), next, kBytes, 1);
    const Bytes sent = message(context.rank(), next, kBytes, 2);
    for (int round = 0; round < 20; ++round) {
      std::uint8_t has_ended = 0;
      {
        const auto send = channel.isend(cancelled.data(), kBytes, next, 5);
        has_ended = static_cast<std::uint8_t>(send->done());
      }
      channel.all_reduce(&has_ended, 1, DType::u8, ReduceOp::max(), guarded());
      if (has_ended != 0) return;  // the backend keeps a message of this length: nothing to cancel
      Bytes received(kBytes);
      const auto receive = channel.irecv(received.data(), kBytes, previous, 5);
      const auto send = channel.isend(sent.data(), kBytes, next, 5);
      finish(receive);
      finish(send);
      ASSERT_EQ(difference(received.data(), message(previous, context.rank(), kBytes, 2), DType::u8), "");
    }
  });
}

TEST_P(PointToPoint, MessagesPassWhileACollectiveIsBlocked) {
  run([](RankContext& context) {
    // Rank 0 enters the barrier late: only after everyone's large message, which they send beside their blocked
    // barrier.
    constexpr std::size_t kBytes = std::size_t{3} << 20;
    Channel& channel = context.channel();
    if (context.rank() == 0) {
      for (int peer = 1; peer < context.size(); ++peer) {
        Bytes received(kBytes);
        finish(channel.irecv(received.data(), kBytes, peer, 5));
        EXPECT_EQ(difference(received.data(), message(peer, 0, kBytes, 4), DType::u8), "");
      }
      channel.barrier(guarded());
      return;
    }
    std::thread collective([&] { EXPECT_NO_THROW(channel.barrier(guarded())); });
    const Bytes sent = message(context.rank(), 0, kBytes, 4);
    finish(channel.isend(sent.data(), kBytes, 0, 5));
    collective.join();
  });
}

TEST_P(PointToPoint, MessagesSentDuringCollectivesWaitForTheirReceives) {
  run([](RankContext& context) {
    Channel& channel = context.channel();
    const int next = (context.rank() + 1) % context.size();
    const int previous = (context.rank() + context.size() - 1) % context.size();
    const Bytes sent = message(context.rank(), next, 200'000, 6);
    const auto send = channel.isend(sent.data(), sent.size(), next, 9);
    for (int round = 0; round < 20; ++round) {
      std::vector<float> data(5000, 1.0F);
      channel.all_reduce(data.data(), data.size(), DType::f32, ReduceOp::sum(), guarded());
      ASSERT_EQ(data.back(), static_cast<float>(context.size()));
    }
    Bytes received(sent.size());
    finish(channel.irecv(received.data(), received.size(), previous, 9));
    EXPECT_EQ(difference(received.data(), message(previous, context.rank(), sent.size(), 6), DType::u8), "");
    finish(send);
  });
}

// More than the receiver keeps, so that some have not begun.
TEST_P(Unreceived, CollectivesPassSendsThatNobodyReceives) {
  run([](RankContext& context) {
    constexpr std::size_t kSends = kMaxUnreceivedOffers + 10'000;
    Channel& channel = context.channel();
    const auto duplicate = channel.duplicate(guarded());
    std::vector<int> values(kSends);
    std::iota(values.begin(), values.end(), 0);
    std::vector<std::shared_ptr<Request>> sends;
    for (std::size_t i = 0; i < kSends && context.rank() == 0; ++i)
      sends.push_back(channel.isend(&values[i], sizeof(int), 1, 9));
    for (Channel* const each : {&channel, duplicate.get()}) {
      each->barrier(guarded());
      std::vector<float> data(100'000, 1.0F);
      each->all_reduce(data.data(), data.size(), DType::f32, ReduceOp::sum(), guarded());
      ASSERT_EQ(data.back(), static_cast<float>(context.size()));
    }
    for (std::size_t i = 0; i < kSends && context.rank() == 1; ++i) {
      int received = -1;
      finish(channel.irecv(&received, sizeof(int), 0, 9));
      ASSERT_EQ(received, static_cast<int>(i));
    }
    for (const auto& send : sends) finish(send);
    channel.barrier(guarded());
  });
}

TEST_P(PointToPoint, AShorterMessageFitsAndALongerOneIsRefusedWithoutAnyWriteBeyond) {
  run([](RankContext& context) {
    Channel& channel = context.channel();
    if (context.rank() == 1) {
      const Bytes sent = message(1, 0, 100'000, 8);
      const auto fits = channel.isend(sent.data(), 10, 0, 1);
      const auto too_long = channel.isend(sent.data(), sent.size(), 0, 2);
      finish(fits);
      // Whether the sender hears of it is not said, but it is not kept waiting, and later messages pass.
      try {
        finish(too_long);
      } catch (const MismatchError&) {
      }
      finish(channel.isend(sent.data(), 10, 0, 3));
    } else if (context.rank() == 0) {
      Bytes buffer(64 + 50'000, std::byte{0x11});
      EXPECT_EQ(finish(channel.irecv(buffer.data(), 64, 1, 1)).bytes, 10U);
      const Bytes whole = message(1, 0, 100'000, 8);
      EXPECT_EQ(difference(buffer.data(), bytes_of(whole.data(), 10), DType::u8), "");
      for (std::size_t i = 10; i < 64; ++i) ASSERT_EQ(buffer[i], std::byte{0x11});
      const auto receive = channel.irecv(buffer.data(), 64, 1, 2);
      expect_throw<MismatchError>([&] { finish(receive); });
      for (std::size_t i = 64; i < buffer.size(); ++i)
        ASSERT_EQ(buffer[i], std::byte{0x11}) << "written beyond the buffer";
    }
    context.meet("end");
  });
}

TEST_P(PointToPoint, AReceiveThatNobodyAnswersTimesOutAndCanBeDropped) {
  run([](RankContext& context) {
    Channel& channel = context.channel();
    const int next = (context.rank() + 1) % context.size();
    const int previous = (context.rank() + context.size() - 1) % context.size();
    Bytes abandoned(1000, std::byte{0x22});
    {
      const auto receive = channel.irecv(abandoned.data(), abandoned.size(), previous, 44);
      expect_throw<TimeoutError>([&] { receive->wait(Deadline::after(Milliseconds(50))); });
    }
    context.meet("dropped");
    // Now it is sent: the next receive takes it, and nothing is written where the dropped one pointed.
    const Bytes sent = message(context.rank(), next, abandoned.size(), 2);
    const auto send = channel.isend(sent.data(), sent.size(), next, 44);
    Bytes received(sent.size());
    finish(channel.irecv(received.data(), received.size(), previous, 44));
    finish(send);
    EXPECT_EQ(difference(received.data(), message(previous, context.rank(), sent.size(), 2), DType::u8), "");
    for (const std::byte b : abandoned) ASSERT_EQ(b, std::byte{0x22});
  });
}

TEST_P(PointToPoint, ManyThreadsSendAndReceiveAtOnce) {
  run([](RankContext& context) {
    const int next = (context.rank() + 1) % context.size();
    const int previous = (context.rank() + context.size() - 1) % context.size();
    std::vector<std::thread> threads;
    for (std::uint32_t tag = 0; tag < 4; ++tag) {
      threads.emplace_back([&, tag] {
        SCOPED_TRACE(concat("rank ", context.rank(), " tag ", tag));
        for (std::size_t round = 0; round < 30; ++round) {
          const std::size_t bytes = (round * 7919 * (tag + 1)) % 40'000;
          const Bytes sent = message(context.rank(), next, bytes, tag * 100 + round);
          Bytes received(bytes);
          const auto send = context.channel().isend(sent.data(), bytes, next, tag);
          finish(context.channel().irecv(received.data(), bytes, previous, tag));
          finish(send);
          EXPECT_EQ(difference(received.data(), message(previous, context.rank(), bytes, tag * 100 + round), DType::u8),
                    "");
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

TEST_P(PointToPointSelf, ARankMaySendToItself) {
  run([](RankContext& context) {
    const Bytes sent = message(context.rank(), context.rank(), 100'003, 1);
    Bytes received(sent.size());
    const auto send = context.channel().isend(sent.data(), sent.size(), context.rank(), 1);
    finish(context.channel().irecv(received.data(), received.size(), context.rank(), 1));
    finish(send);
    EXPECT_EQ(difference(received.data(), sent, DType::u8), "");
  });
}

}  // namespace
}  // namespace gradwire::testing

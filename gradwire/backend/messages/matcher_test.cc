// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Proves, step by step, what the matcher does at the edges: cancelled offers, credits, sizes, ends of channels.
#include "gradwire/backend/messages/matcher_internal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/backend/messages/simulated_wire_test_support.h"
#include "gradwire/base/error.h"

namespace gradwire::messages::matcher_test {
namespace {

using Direction = Message::Direction;

constexpr std::uint64_t kChannel = 5;
constexpr std::size_t kCapacity = 2000;

class MatcherTest : public ::testing::Test {
 protected:
  static constexpr Limits kLimits{.eager_message = 100, .eager_bytes = 3 * (100 + kEagerOverhead), .offers = 2};

  MatcherTest() {
    for (int rank = 0; rank < 2; ++rank) {
      matchers_[rank].add_channel(kChannel, std::make_shared<Members>(Members{rank, std::vector<int>{0, 1}}));
    }
  }

  MessagePtr post(int rank, Direction direction, std::vector<std::byte>& buffer, std::uint32_t tag = 1) {
    auto message = std::make_shared<Message>(direction, kChannel, 1 - rank, tag, buffer.data(), buffer.size());
    if (!matchers_[rank].end_at_once(*message)) matchers_[rank].start(message);
    return message;
  }
  // As a rank does that reads the wire when it calls a receive.
  MessagePtr post_and_read(int rank, std::vector<std::byte>& buffer) {
    auto message = post(rank, Direction::receive, buffer);
    if (!message->done) matchers_[rank].poll_started();
    return message;
  }
  void settle() {
    while (matchers_[0].poll() || matchers_[1].poll()) {
    }
  }
  static std::string error_of(const MessagePtr& message) {
    if (!message->done) return "not done";
    try {
      if (message->error != nullptr) std::rethrow_exception(message->error);
    } catch (const std::exception& error) {
      return describe(error);
    }
    return "";
  }
  static std::exception_ptr given_up() { return std::make_exception_ptr(AbortedError("given up")); }

  SimulatedNet net_{2, kCapacity};
  SimulatedWire wires_[2]{{net_, 0}, {net_, 1}};
  Matcher matchers_[2]{{wires_[0], kLimits}, {wires_[1], kLimits}};
  std::vector<std::byte> large_ = std::vector<std::byte>(5000, std::byte{1});
  std::vector<std::byte> room_ = std::vector<std::byte>(5000);
};

TEST_F(MatcherTest, AnOfferThatIsCancelledBeforeItsReceiveWasNeverMade) {
  const auto send = post(0, Direction::send, large_);
  settle();
  EXPECT_EQ(matchers_[1].kept(0).offers, 1U);
  matchers_[0].cancel(*send, given_up());
  settle();
  EXPECT_EQ(matchers_[1].kept(0).offers, 0U);
  const auto receive = post(1, Direction::receive, room_);
  settle();
  EXPECT_EQ(error_of(receive), "not done");
  EXPECT_FALSE(matchers_[0].busy());
}

// The offer and its end lie on the wire when the receive is called.
TEST_F(MatcherTest, AnOfferThatIsCancelledBeforeItsReceiveWasNeverMadeThoughNobodyReadIt) {
  const auto send = post(0, Direction::send, large_);
  matchers_[0].poll();
  matchers_[0].cancel(*send, given_up());
  matchers_[0].poll();
  const auto receive = post_and_read(1, room_);
  settle();
  EXPECT_EQ(error_of(receive), "not done");
  EXPECT_EQ(matchers_[1].kept(0).offers, 0U);
  // The receive takes the next message, and receives keep their order.
  std::vector<std::byte> then(4000, std::byte{2});
  std::vector<std::byte> last_room(5000);
  const auto last_receive = post_and_read(1, last_room);
  const auto next = post(0, Direction::send, then);
  const auto last = post(0, Direction::send, large_);
  settle();
  EXPECT_EQ(error_of(receive) + error_of(last_receive) + error_of(next) + error_of(last), "");
  EXPECT_EQ(receive->status.bytes, then.size());
  EXPECT_EQ(last_receive->status.bytes, large_.size());
  EXPECT_TRUE(std::equal(then.begin(), then.end(), room_.begin()));
  EXPECT_FALSE(matchers_[0].busy() || matchers_[1].busy());
}

TEST_F(MatcherTest, BehindACancelledOfferTheReceiveTakesTheMessageThatHasCome) {
  for (const std::size_t bytes : {std::size_t{50}, std::size_t{4000}, std::size_t{6000}}) {
    std::vector<std::byte> then(bytes, std::byte{2});
    const auto cancelled = post(0, Direction::send, large_);
    const auto next = post(0, Direction::send, then);
    matchers_[0].poll();
    matchers_[0].cancel(*cancelled, given_up());
    matchers_[0].poll();
    const auto receive = post_and_read(1, room_);
    settle();
    if (bytes <= room_.size()) {
      EXPECT_EQ(error_of(receive) + error_of(next), "");
      EXPECT_EQ(receive->status.bytes, bytes);
      EXPECT_TRUE(std::equal(then.begin(), then.end(), room_.begin()));
    } else {
      EXPECT_NE(error_of(receive).find("MismatchError"), std::string::npos) << error_of(receive);
    }
    EXPECT_EQ(matchers_[1].kept(0).offers + matchers_[1].kept(0).bytes, 0U);
    EXPECT_FALSE(matchers_[0].busy() || matchers_[1].busy());
  }
}

TEST_F(MatcherTest, TheFirstOfSeveralOffersOnTheWireGoesToTheReceive) {
  std::vector<std::byte> small(50, std::byte{3});
  const auto first = post(0, Direction::send, large_);
  const auto second = post(0, Direction::send, small);
  matchers_[0].poll();
  const auto receive = post_and_read(1, room_);
  settle();
  EXPECT_EQ(error_of(receive) + error_of(first), "");
  EXPECT_EQ(room_, large_);
  const auto then = post_and_read(1, room_);
  EXPECT_EQ(error_of(then) + error_of(second), "");
  EXPECT_EQ(then->status.bytes, small.size());
  EXPECT_FALSE(matchers_[0].busy() || matchers_[1].busy());
}

TEST_F(MatcherTest, ASendThatIsCancelledAfterItsReceiveWasThereEndsTheReceive) {
  // Accepted, and no piece has gone: there is no room for one.
  const auto receive = post(1, Direction::receive, room_);
  const auto send = post(0, Direction::send, large_);
  matchers_[0].poll();  // the offer
  matchers_[1].poll();  // the accept
  while (net_.write(0, 1, {FrameKind::credit}, {})) {
  }
  matchers_[0].poll();
  EXPECT_EQ(send->stage, Message::Stage::sending);
  EXPECT_EQ(send->moved, 0U);
  matchers_[0].cancel(*send, given_up());
  settle();
  EXPECT_NE(error_of(receive).find("PeerError: receive on rank 1 of 2"), std::string::npos) << error_of(receive);
  EXPECT_NE(error_of(receive).find("rank 0, gave up"), std::string::npos) << error_of(receive);
  EXPECT_FALSE(matchers_[0].busy() || matchers_[1].busy());
}

TEST_F(MatcherTest, AReceiveThatIsCancelledAfterItHadMatchedUsesItsMessageUp) {
  const auto receive = post(1, Direction::receive, room_);
  const auto send = post(0, Direction::send, large_);
  matchers_[0].poll();
  matchers_[1].poll();
  matchers_[0].poll();
  matchers_[1].cancel(*receive, given_up());
  const std::vector<std::byte> then = room_;
  settle();
  EXPECT_EQ(error_of(send), "");
  EXPECT_EQ(room_, then) << "written after its end";
  EXPECT_FALSE(matchers_[0].busy() || matchers_[1].busy());
}

TEST_F(MatcherTest, ALargeMessageForASmallBufferIsRefusedAndDoesNotTravel) {
  std::vector<std::byte> small(10, std::byte{7});
  const auto receive = post(1, Direction::receive, small);
  const auto send = post(0, Direction::send, large_);
  settle();
  EXPECT_NE(error_of(receive).find("MismatchError"), std::string::npos);
  EXPECT_EQ(error_of(send), "");
  EXPECT_EQ(small, std::vector<std::byte>(10, std::byte{7}));
}

TEST_F(MatcherTest, BeyondItsCreditASmallMessageWaitsAtItsSenderAndComesInOrder) {
  std::vector<std::vector<std::byte>> sent;
  for (int i = 0; i < 10; ++i) sent.emplace_back(100, static_cast<std::byte>(i));
  std::vector<MessagePtr> sends;
  for (auto& buffer : sent) sends.push_back(post(0, Direction::send, buffer));
  settle();
  EXPECT_TRUE(sends[2]->done) << "within the credit";
  EXPECT_FALSE(sends[3]->done) << "beyond it";
  EXPECT_EQ(matchers_[1].kept(0).bytes, kLimits.eager_bytes);
  EXPECT_EQ(matchers_[1].kept(0).offers, kLimits.offers);
  for (int i = 0; i < 10; ++i) {
    std::vector<std::byte> received(100);
    const auto receive = post(1, Direction::receive, received);
    settle();
    EXPECT_EQ(error_of(receive), "");
    EXPECT_EQ(received, sent[static_cast<std::size_t>(i)]) << "message " << i;
  }
  for (const auto& send : sends) EXPECT_EQ(error_of(send), "");
}

class PullingTest : public MatcherTest {
 protected:
  static constexpr std::size_t kPiece = 2000;  // of 5000

  PullingTest() {
    limits_.pulled_piece = kPiece;
    for (SimulatedWire& wire : wires_) {
      wire.least_lent = 1000;
      wire.may_pull = [this](int) { return pulls_left_-- > 0; };
    }
    for (std::size_t i = 0; i < large_.size(); ++i) large_[i] = static_cast<std::byte>(i * 7);
    begin(nullptr);
  }
  void begin(const std::function<QuickerWay::TimePoint()>& clock) {
    for (int rank = 0; rank < 2; ++rank) {
      pulling_[rank] = std::make_unique<Matcher>(wires_[rank], limits_, clock);
      pulling_[rank]->add_channel(kChannel, std::make_shared<Members>(Members{rank, std::vector<int>{0, 1}}));
    }
  }
  MessagePtr post(int rank, Direction direction, std::vector<std::byte>& buffer) {
    auto message = std::make_shared<Message>(direction, kChannel, 1 - rank, 1, buffer.data(), buffer.size());
    if (!pulling_[rank]->end_at_once(*message)) pulling_[rank]->start(message);
    return message;
  }
  void settle() {
    while (pulling_[0]->poll() || pulling_[1]->poll()) {
    }
    EXPECT_FALSE(pulling_[0]->busy() || pulling_[1]->busy());
  }
  // A message that arrives, whichever way.
  void exchange() {
    std::fill(room_.begin(), room_.end(), std::byte{0});
    const auto receive = post(1, Direction::receive, room_);
    const auto send = post(0, Direction::send, large_);
    settle();
    EXPECT_EQ(error_of(send), "");
    EXPECT_EQ(error_of(receive), "");
    EXPECT_EQ(room_, large_);
  }
  // A message of which the receiver has read so many pieces; the last one makes it report.
  void pull(int pieces) {
    receive_ = post(1, Direction::receive, room_);
    send_ = post(0, Direction::send, large_);
    pulling_[0]->poll();  // the offer
    for (int i = 0; i < pieces; ++i) pulling_[1]->poll();
    ASSERT_EQ(receive_->moved, std::min<std::size_t>(pieces * kPiece, 5000));
    ASSERT_EQ(error_of(receive_), "not done");
  }

  Limits limits_ = kLimits;
  int pulls_left_ = 100;
  std::unique_ptr<Matcher> pulling_[2];
  MessagePtr send_;
  MessagePtr receive_;
};

TEST_F(PullingTest, ALargeMessageIsReadOutOfItsSendersMemory) {
  pull(3);
  EXPECT_EQ(error_of(send_), "not done") << "until it has confirmed";
  settle();
  EXPECT_EQ(error_of(send_), "");
  EXPECT_EQ(error_of(receive_), "");
  EXPECT_EQ(room_, large_);
  EXPECT_EQ(receive_->status.bytes, 5000U);
  EXPECT_EQ(pulls_left_, 97);
}

// What the receiver has read may no longer be what was sent.
TEST_F(PullingTest, ASendThatIsGivenUpBeforeItsConfirmationEndsTheReceive) {
  for (const int pieces : {1, 3}) {
    pull(pieces);
    pulling_[0]->cancel(*send_, given_up());
    std::fill(large_.begin(), large_.end(), std::byte{0xee});
    settle();
    EXPECT_NE(error_of(send_).find("given up"), std::string::npos);
    EXPECT_NE(error_of(receive_).find("rank 0, gave up"), std::string::npos) << error_of(receive_);
  }
}

TEST_F(PullingTest, ASendThatIsGivenUpWithItsConfirmationUnwrittenEndsTheReceive) {
  pull(3);
  while (net_.write(0, 1, {FrameKind::credit}, {})) {
  }
  pulling_[0]->poll();
  ASSERT_EQ(send_->stage, Message::Stage::confirming);
  EXPECT_EQ(error_of(send_), "not done");
  pulling_[0]->cancel(*send_, given_up());
  settle();
  EXPECT_NE(error_of(receive_).find("rank 0, gave up"), std::string::npos) << error_of(receive_);
}

TEST_F(PullingTest, AReceiveThatIsGivenUpUsesItsMessageUpAndIsNotWrittenAnyMore) {
  for (const int pieces : {1, 3}) {
    pull(pieces);
    pulling_[1]->cancel(*receive_, given_up());
    const std::vector<std::byte> then = room_;
    settle();
    EXPECT_EQ(error_of(send_), "");
    EXPECT_NE(error_of(receive_).find("given up"), std::string::npos);
    EXPECT_EQ(room_, then);
  }
}

TEST_F(PullingTest, AMessageThatCannotBeReadToItsEndComesInPieces) {
  for (const int readable : {0, 1, 2}) {
    pulls_left_ = readable;
    exchange();
    EXPECT_EQ(pulls_left_, -1) << "one more was tried";
  }
}

TEST_F(PullingTest, WherePullingIsSlowMessagesComeInPieces) {
  QuickerWay::TimePoint now;
  int pulls = 0;
  wires_[1].may_pull = [&](int) {
    ++pulls;
    now += std::chrono::milliseconds(1);
    return true;
  };
  begin([&] { return now += std::chrono::microseconds(1); });
  for (int i = 0; i < 50; ++i) exchange();
  constexpr int kPieces = 3;
  EXPECT_EQ(pulls, static_cast<int>(QuickerWay::kTries) * kPieces) << "it knows after its tries";
}

TEST_F(PullingTest, ASenderThatIsLostEndsTheReceiveHoweverMuchWasRead) {
  pull(3);
  pulling_[1]->fail_rank(kChannel, 0, {std::make_exception_ptr(PeerError("rank 0 died", {0}))});
  EXPECT_EQ(error_of(receive_), "PeerError: rank 0 died");
  EXPECT_FALSE(pulling_[1]->busy());
}

TEST_F(MatcherTest, TheEndOfAChannelReachesTheOthersBehindWhatWasSent) {
  std::vector<std::byte> small(10, std::byte{3});
  const auto sent = post(0, Direction::send, small);
  const auto lost = post(0, Direction::send, large_, 2);
  const Notice notice{"rank 0 left the group", true};
  matchers_[0].end_channel(kChannel, given_up(), &notice);
  matchers_[0].remove_channels(kChannel, kChannel);
  EXPECT_NE(error_of(lost).find("given up"), std::string::npos);
  settle();
  std::vector<std::byte> received(10);
  EXPECT_EQ(error_of(post(1, Direction::receive, received)), "");
  EXPECT_EQ(received, small);
  EXPECT_EQ(error_of(post(1, Direction::receive, received)), "PeerError: rank 0 left the group");
  EXPECT_EQ(error_of(post(1, Direction::send, large_)), "PeerError: rank 0 left the group");
  EXPECT_FALSE(matchers_[0].busy() || matchers_[1].busy());
}

TEST_F(MatcherTest, AReceiveUnderWayHearsTheReasonOfTheEndAndNotThatItsMessageWasCancelled) {
  const auto receive = post(1, Direction::receive, room_);
  const auto send = post(0, Direction::send, large_);
  matchers_[0].poll();  // the offer
  matchers_[1].poll();  // accepted
  matchers_[0].poll();  // the first pieces
  ASSERT_EQ(error_of(send), "not done");
  const Notice notice{"rank 1 is gone", false, {1}};
  matchers_[0].end_channel(kChannel, given_up(), &notice);
  settle();
  EXPECT_EQ(error_of(receive), "PeerError: rank 1 is gone");
  EXPECT_FALSE(matchers_[0].busy() || matchers_[1].busy());
}

TEST_F(MatcherTest, WhatComesForAChannelThatWasRemovedIsDroppedAndItsCreditGivenBack) {
  matchers_[1].end_channel(kChannel, given_up(), nullptr);
  matchers_[1].remove_channels(kChannel, kChannel);
  std::vector<std::vector<std::byte>> sent(40, std::vector<std::byte>(100));
  for (auto& buffer : sent) {
    const auto send = post(0, Direction::send, buffer);
    settle();
    EXPECT_EQ(error_of(send), "");
  }
  EXPECT_EQ(matchers_[1].kept(0).bytes, 0U);
}

TEST_F(MatcherTest, MessagesMayComeBeforeTheirChannel) {
  const auto members = [](int rank) { return std::make_shared<Members>(Members{rank, std::vector<int>{1, 0}}); };
  matchers_[0].add_channel(9, members(1));  // the ranks the other way round
  std::vector<std::byte> small(10, std::byte{4});
  auto send = std::make_shared<Message>(Direction::send, 9, 0, 1, small.data(), small.size());
  EXPECT_TRUE(matchers_[0].end_at_once(*send));
  settle();
  matchers_[1].add_channel(9, members(0));
  std::vector<std::byte> received(10);
  auto receive = std::make_shared<Message>(Direction::receive, 9, kAnySource, 1, received.data(), received.size());
  EXPECT_TRUE(matchers_[1].end_at_once(*receive));
  EXPECT_EQ(receive->status.source, 1);
  EXPECT_EQ(received, small);
}

}  // namespace
}  // namespace gradwire::messages::matcher_test

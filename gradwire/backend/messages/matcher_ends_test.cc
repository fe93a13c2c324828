// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Proves who learns of the end of a channel where not all peers are partners: six endpoints in a ring, of which each is
// connected with its two neighbours, and with another one from the first frame on.
#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "gradwire/backend/messages/matcher_internal.h"
#include "gradwire/backend/messages/simulated_wire_test_support.h"
#include "gradwire/base/error.h"

namespace gradwire::messages::matcher_ends_test {
namespace {

using Direction = Message::Direction;

constexpr int kRanks = 6;
constexpr int kOpposite = 3;  // of rank 0, no neighbour's neighbour
constexpr std::uint64_t kChannel = 5;

class MatcherEndsTest : public ::testing::Test {
 protected:
  static constexpr Limits kLimits{.eager_message = 100, .eager_bytes = 10 * (100 + kEagerOverhead), .offers = 2};

  MatcherEndsTest() {
    for (int rank = 0; rank < kRanks; ++rank) {
      wires_.push_back(std::make_unique<SimulatedWire>(net_, rank));
      wires_.back()->partners = {(rank + 1) % kRanks, (rank + kRanks - 1) % kRanks};
      matchers_.push_back(std::make_unique<Matcher>(*wires_.back(), kLimits));
      add(rank, kChannel);
    }
  }
  Matcher& at(int rank) { return *matchers_[static_cast<std::size_t>(rank)]; }
  void add(int rank, std::uint64_t channel) {
    std::vector<int> peers(kRanks);
    std::iota(peers.begin(), peers.end(), 0);
    at(rank).add_channel(channel, std::make_shared<Members>(Members{rank, peers}));
  }
  MessagePtr post(int rank, Direction direction, int other, std::vector<std::byte>& buffer,
                  std::uint64_t channel = kChannel) {
    auto message = std::make_shared<Message>(direction, channel, other, 1, buffer.data(), buffer.size());
    if (!at(rank).end_at_once(*message)) at(rank).start(message);
    return message;
  }
  MessagePtr receive(int rank, int source, std::uint64_t channel = kChannel) {
    return post(rank, Direction::receive, source, room_, channel);
  }
  void settle() {
    for (bool moved = true; moved;) {
      moved = false;
      for (const auto& matcher : matchers_) moved = matcher->poll() || moved;
    }
  }
  void abort(int rank, const char* text, std::vector<int> at_fault = {}) {
    const Notice notice{text, false, std::move(at_fault)};
    at(rank).end_channel(kChannel, std::make_exception_ptr(AbortedError("aborted")), &notice);
  }
  void leave(int rank, std::uint64_t channel = kChannel) {
    const Notice notice{"rank " + std::to_string(rank) + " left the group", true, {}};
    at(rank).end_channel(channel, std::make_exception_ptr(AbortedError("left")), &notice);
    at(rank).remove_channels(channel, channel);
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

  SimulatedNet net_{kRanks, 2000};
  std::vector<std::unique_ptr<SimulatedWire>> wires_;
  std::vector<std::unique_ptr<Matcher>> matchers_;
  std::deque<SimulatedNet::Letter> held_[kRanks];
  std::vector<std::byte> room_ = std::vector<std::byte>(5000);
  std::vector<std::byte> large_ = std::vector<std::byte>(5000, std::byte{1});
  std::vector<std::byte> small_ = std::vector<std::byte>(10, std::byte{2});
};

TEST_F(MatcherEndsTest, AReceiveThatBeginsAfterAFailureOfARankThatIsNoPartnerEnds) {
  abort(0, "enough");
  settle();
  const auto waits = receive(kOpposite, 0);
  settle();
  EXPECT_EQ(error_of(waits), "PeerError: enough");
}

// Not the first failure of the channel, which is passed on, but one that follows it.
TEST_F(MatcherEndsTest, TheFailuresThatFollowTheFirstAreToldToThoseWhoWait) {
  abort(0, "the first");
  settle();
  abort(1, "the second", {0});
  settle();
  const auto before = receive(4, 2);
  settle();
  EXPECT_EQ(error_of(before), "not done");
  abort(2, "the third", {0});
  settle();
  EXPECT_EQ(error_of(before), "PeerError: the third") << "rank 2 knew that rank 4 waits";
  const auto after = receive(4, 1);
  settle();
  EXPECT_EQ(error_of(after), "PeerError: the second") << "rank 1 is asked";
}

TEST_F(MatcherEndsTest, AnEndThatCrossesTheQuestionIsToldToo) {
  const auto waits = receive(kOpposite, 0);
  at(kOpposite).write_all();  // the question is on its way
  leave(0);
  EXPECT_EQ(error_of(waits), "not done");
  settle();
  EXPECT_EQ(error_of(waits), "PeerError: rank 0 left the group");
}

TEST_F(MatcherEndsTest, EachChannelIsAskedForThoughThePeersAreConnected) {
  for (int rank = 0; rank < kRanks; ++rank) add(rank, kChannel + 1);
  leave(0, kChannel + 1);
  settle();
  const auto stays = receive(kOpposite, 0);
  settle();
  EXPECT_EQ(error_of(stays), "not done") << "the channel goes on";
  const auto ends = receive(kOpposite, 0, kChannel + 1);
  settle();
  EXPECT_EQ(error_of(ends), "PeerError: rank 0 left the group");
  // What was sent before still comes.
  const auto send = post(0, Direction::send, kOpposite, small_);
  settle();
  EXPECT_EQ(error_of(send), "");
  EXPECT_EQ(error_of(stays), "");
}

TEST_F(MatcherEndsTest, AFailureIsRememberedWhenTheChannelHasBeenRemoved) {
  add(0, kChannel + 1);
  abort(0, "enough");
  at(0).remove_channels(kChannel, kChannel);
  leave(0, kChannel + 1);
  settle();
  const auto waits = receive(kOpposite, 0);
  settle();
  EXPECT_EQ(error_of(waits), "PeerError: enough");
}

// Not those with the highest numbers: a channel may fail long after younger ones have.
TEST_F(MatcherEndsTest, OfManyFailuresTheLastAreRemembered) {
  constexpr std::uint64_t kMany = 300;
  for (std::uint64_t number = kChannel + 1; number <= kChannel + kMany; ++number) {
    add(0, number);
    const Notice notice{"another", false, {}};
    at(0).end_channel(number, std::make_exception_ptr(AbortedError("aborted")), &notice);
    at(0).remove_channels(number, number);
    settle();
  }
  abort(0, "enough");
  settle();
  const auto waits = receive(kOpposite, 0);
  settle();
  EXPECT_EQ(error_of(waits), "PeerError: enough");
}

TEST_F(MatcherEndsTest, AMessageToAChannelThatHasEndedIsAnsweredWithTheEnd) {
  leave(0);
  settle();
  const auto offered = post(2, Direction::send, 0, large_);
  const auto gone = post(4, Direction::send, 0, small_);
  EXPECT_EQ(error_of(gone), "") << "nobody knows yet";
  settle();
  EXPECT_EQ(error_of(offered), "PeerError: rank 0 left the group");
  EXPECT_EQ(error_of(post(4, Direction::send, 0, small_)), "PeerError: rank 0 left the group");
}

TEST_F(MatcherEndsTest, AReceiveFromAnyoneEndsWithAFailureOfARankThatIsNoPartner) {
  std::vector<MessagePtr> wait;
  for (int rank = 1; rank < kRanks; ++rank) wait.push_back(receive(rank, kAnySource));
  settle();
  abort(0, "enough", {4});
  settle();
  for (const auto& each : wait) EXPECT_EQ(error_of(each), "PeerError: enough");
  ASSERT_NE(wait[2]->error, nullptr);
  try {
    std::rethrow_exception(wait[2]->error);
  } catch (const PeerError& error) {
    EXPECT_EQ(error.peers(), std::vector<int>{4}) << "the ranks at fault are passed on";
  }
  EXPECT_EQ(error_of(receive(kOpposite, kAnySource)), "PeerError: enough");
}

// The word of a third rank overtakes what the rank itself had sent before its end.
TEST_F(MatcherEndsTest, WhatWasSentBeforeAFailureComesThoughTheFailureIsHeardOfFirst) {
  const auto partners = receive(1, 0);
  const auto other = receive(kOpposite, 0);
  settle();
  EXPECT_EQ(error_of(post(0, Direction::send, 1, small_)), "");
  EXPECT_EQ(error_of(post(0, Direction::send, kOpposite, small_)), "");
  abort(0, "enough");
  at(0).write_all();
  // All but what rank 0 has sent to ranks 1 and 3.
  for (const int silent : {1, kOpposite}) std::swap(net_.link(0, silent), held_[silent]);
  settle();
  EXPECT_EQ(error_of(receive(kOpposite, kAnySource)), "PeerError: enough") << "it has heard of the failure";
  EXPECT_EQ(error_of(partners), "not done");
  EXPECT_EQ(error_of(other), "not done");
  for (const int silent : {1, kOpposite}) std::swap(net_.link(0, silent), held_[silent]);
  settle();
  EXPECT_EQ(error_of(partners), "");
  EXPECT_EQ(error_of(other), "");
}

TEST_F(MatcherEndsTest, AReceiveFromAnyoneGoesOnUntilTheLastOtherRankHasLeft) {
  const auto waits = receive(kOpposite, kAnySource);
  for (const int rank : {0, 2, 4, 1}) {
    leave(rank);
    settle();
    EXPECT_EQ(error_of(waits), "not done") << "rank 5 is there";
  }
  leave(5);
  settle();
  EXPECT_EQ(error_of(waits), "PeerError: rank 5 left the group");
}

TEST_F(MatcherEndsTest, NothingIsLeftToSayAfterwards) {
  const auto waits = receive(kOpposite, 0);
  abort(0, "enough");
  leave(1);
  settle();
  EXPECT_EQ(error_of(waits), "PeerError: enough");
  for (int rank = 0; rank < kRanks; ++rank) EXPECT_FALSE(at(rank).busy()) << "rank " << rank;
}

}  // namespace
}  // namespace gradwire::messages::matcher_ends_test

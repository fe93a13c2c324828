// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Proves: a failure that one rank tells the others keeps its kind and its ranks, whatever they wait for; a rank that
// died is not waited for; a store may repeat a call.
#include "gradwire/backend/rendezvous_internal.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/backend/registry.h"
#include "gradwire/base/error.h"
#include "gradwire/store/forwarding_store.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/store/prefix_store.h"
#include "tests/support/ended_process.h"
#include "tests/support/repeating_store.h"

namespace gradwire::rendezvous_test {
namespace {

const Deadline kSoon = Deadline::after(std::chrono::minutes(1));

// What a rank that waits gets when rank 2 has announced `error`.
template <class Kind>
Kind heard(const std::exception& error) {
  HashStore store;
  rendezvous::announce_failure(store, 2, error);
  rendezvous::announce_failure(store, 3, InternalError("a later one"));
  try {
    rendezvous::await_key(store, "never", 0, kSoon);
  } catch (const Kind& told) {
    return told;
  }
  throw InternalError("another kind came");
}

TEST(Rendezvous, AFailureKeepsItsKindAndItsRanks) {
  EXPECT_EQ(heard<TimeoutError>(TimeoutError("rendezvous failed: late", {1, 4})).peers(), (std::vector<int>{1, 4}));
  EXPECT_EQ(heard<PeerError>(PeerError("rendezvous failed: dead", {5})).peers(), std::vector<int>{5});
  EXPECT_STREQ(heard<MismatchError>(MismatchError("rendezvous failed: a|b\nc")).what(), "rendezvous failed: a|b\nc");
  EXPECT_STREQ(heard<ResourceError>(ResourceError("no memory")).what(),
               "rendezvous failed on rank 2: ResourceError: no memory");
}

TEST(Rendezvous, AFailureOfARanksOwnBecomesAPeerErrorThatNamesTheRank) {
  const PeerError told = heard<PeerError>(InvalidArgument("another host"));
  EXPECT_EQ(told.peers(), std::vector<int>{2});
  EXPECT_STREQ(told.what(), "rendezvous failed on rank 2: InvalidArgument: another host");
  EXPECT_EQ(heard<PeerError>(AbortedError("Ctrl-C")).peers(), std::vector<int>{2});
}

TEST(Rendezvous, TextThatMakesNoSenseIsSaidToBeThat) {
  EXPECT_THROW(rendezvous::throw_failure(""), InternalError);
  EXPECT_THROW(rendezvous::throw_failure("carrots 1,2|text"), InternalError);
}

TEST(Rendezvous, ANumberIsTakenOnceThoughTheStoreRepeatsItsCalls) {
  const auto store = std::make_shared<HashStore>();
  test_support::RepeatingStore repeating(store);
  rendezvous::claim_rank(repeating, "shm", 0, 2);
  rendezvous::claim_rank(repeating, "shm", 1, 2);
  EXPECT_THROW(rendezvous::claim_rank(repeating, "shm", 1, 2), MismatchError);
  EXPECT_THROW(rendezvous::claim_rank(*store, "shm", 0, 2), MismatchError);
  EXPECT_THROW(rendezvous::claim_rank(*store, "shm", 2, 3), MismatchError);
  EXPECT_THROW(rendezvous::claim_rank(*store, "ucx", 1, 2), MismatchError);
}

// Fails after a number of calls, as the store does of a rank that is killed then.
class StoreOfAKilledRank final : public ForwardingStore {
 public:
  StoreOfAKilledRank(std::shared_ptr<Store> store, int calls) : ForwardingStore(std::move(store)), calls_(calls) {}
  std::shared_ptr<Store> clone() override { throw InternalError("not needed"); }

 protected:
  void forward(const std::function<void(Store& store)>& call) override {
    if (calls_-- == 0) throw StoreError("killed");
    call(*underlying());
  }

 private:
  int calls_;
};

TEST(Rendezvous, ARankThatHasTakenItsNumberHasSaidWhichProcessItIs) {
  bool claimed = false;
  for (int calls = 0; !claimed; ++calls) {
    const auto store = std::make_shared<HashStore>();
    StoreOfAKilledRank killed(store, calls);
    try {
      rendezvous::claim_rank(killed, "shm", 1, 2);
      claimed = true;
    } catch (const StoreError&) {
    }
    const bool has_number = store->check(std::vector<std::string>{"rank/1"});
    EXPECT_TRUE(!has_number || !rendezvous::process_of(*store, 1).empty()) << "killed after " << calls << " calls";
    EXPECT_LT(calls, 10);
  }
}

TEST(Rendezvous, RanksThatNameOtherBackendsAreToldWhereverTheyWait) {
  const auto store = std::make_shared<HashStore>();
  const auto part = std::make_shared<PrefixStore>("part", store);
  rendezvous::claim_backend({store, part}, "Job", 0, "shm");
  rendezvous::claim_backend({store, part}, "Job", 2, "shm");
  EXPECT_THROW(rendezvous::claim_backend({store, part}, "Job", 1, "ucx"), MismatchError);
  for (const auto& place : std::vector<std::shared_ptr<Store>>{store, part}) {
    try {
      rendezvous::throw_if_failed(*place);
      ADD_FAILURE() << "the others would wait for rank 1";
    } catch (const MismatchError& error) {
      EXPECT_NE(std::string(error.what()).find("rank 1 was started with the backend ucx, another rank with shm"),
                std::string::npos)
          << error.what();
    }
  }
}

TEST(Rendezvous, ARankThatDiedIsNotWaitedFor) {
  HashStore store;
  rendezvous::register_rank(store, 0);
  EXPECT_TRUE(rendezvous::dead_ranks(store, std::vector<int>{0, 1}).empty());
  store.set("process/1", test_support::ended_process());
  EXPECT_EQ(rendezvous::dead_ranks(store, std::vector<int>{0, 1}), std::vector<int>{1});
  try {
    rendezvous::await_key(store, "of rank 1", 1, kSoon);
    ADD_FAILURE() << "rank 1 is dead";
  } catch (const PeerError& error) {
    EXPECT_EQ(error.peers(), std::vector<int>{1}) << error.what();
  }
  // What it said before it died counts.
  store.set("of rank 1", "value");
  EXPECT_EQ(rendezvous::await_key(store, "of rank 1", 1, kSoon), "value");
}

TEST(Rendezvous, OfSeveralRanksThoseThatDiedWithoutTheirKeysAreNamed) {
  HashStore store;
  rendezvous::register_rank(store, 0);
  for (const char* process : {"process/1", "process/2"}) store.set(process, test_support::ended_process());
  const std::vector<std::string> keys = {"of 0", "of 1", "of 2"};
  const std::vector<int> ranks = {0, 1, 2};
  store.set("of 1", "said before it died");
  try {
    rendezvous::await_keys(store, keys, ranks, kSoon);
    ADD_FAILURE() << "rank 2 is dead";
  } catch (const PeerError& error) {
    EXPECT_EQ(error.peers(), std::vector<int>{2}) << error.what();
  }
  store.set("of 2", "said before it died");
  EXPECT_EQ(rendezvous::await_keys(store, keys, ranks, Deadline::after(Milliseconds(1))), std::vector<int>{0});
  store.set("of 0", "");
  EXPECT_TRUE(rendezvous::await_keys(store, keys, ranks, kSoon).empty());
}

// Of the backend "threads", whose rank 0 would wait in the first call for a rank that cannot take part.
TEST(Rendezvous, ARankOfAnotherProcessEndsTheThreadsRendezvousOnRankZeroToo) {
  const auto store = std::make_shared<HashStore>();
  BackendOptions options;
  options.store = store;
  options.rank = 1;
  options.size = 2;
  options.timeout = std::chrono::minutes(1);
  store->set("threads/meeting", "1 1");  // process 1
  EXPECT_THROW(make_backend("threads", options), InvalidArgument);
  options.rank = 0;
  try {
    make_backend("threads", options);
    ADD_FAILURE() << "rank 1 cannot take part";
  } catch (const PeerError& error) {
    EXPECT_EQ(error.peers(), std::vector<int>{1});
    EXPECT_NE(std::string(error.what()).find("ranks of this backend are threads of one process"), std::string::npos)
        << error.what();
  }
}

TEST(Rendezvous, ADeadlineNamesTheRankThatIsAwaited) {
  HashStore store;
  try {
    rendezvous::await_key(store, "of rank 7", 7, Deadline::after(Milliseconds(1)));
    ADD_FAILURE() << "nobody set the key";
  } catch (const TimeoutError& error) {
    EXPECT_EQ(error.peers(), std::vector<int>{7});
  }
}

}  // namespace
}  // namespace gradwire::rendezvous_test

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Proves: a rank that waits for others says who is missing, by default once and by one rank, at level info again and
// again; a rank that comes as the others fail gets their failure, whatever the moment; a rank that a store counts twice
// stands for itself alone.
#include "gradwire/backend/job/membership_internal.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/process_identity.h"
#include "gradwire/base/strings.h"
#include "gradwire/store/file_store.h"
#include "gradwire/store/forwarding_store.h"
#include "gradwire/store/hash_store.h"
#include "tests/support/counting_store.h"
#include "tests/support/ended_process.h"
#include "tests/support/ranks.h"
#include "tests/support/repeating_store.h"

namespace gradwire::internal {
namespace {

// What `rank` of three writes to stderr (0 or 1) while it waits for rank 2, which never comes; the other has come. A
// child, because the level is read from the environment once in a process.
std::string said_by(int rank, const char* level, Milliseconds timeout = Milliseconds(1500)) {
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe(ends.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], STDERR_FILENO);
    ::close(ends[0]);
    ::close(ends[1]);
    level == nullptr ? ::unsetenv("GRADWIRE_LOG") : ::setenv("GRADWIRE_LOG", level, 1);
    const auto store = std::make_shared<HashStore>();
    store->set(concat("g0/rank/", 1 - rank), "of another host");
    const WaitReport::Periods often{Milliseconds(1), Milliseconds(1)};
    try {
      const Membership membership(store, rank, 3, timeout, often);
      ::_exit(1);
    } catch (const TimeoutError& error) {
      ::_exit(error.peers() == std::vector<int>{2} ? 0 : 2);
    } catch (...) {
      ::_exit(3);
    }
  }
  ::close(ends[1]);
  std::string text;
  std::array<char, 4096> buffer{};
  for (ssize_t n = 0; (n = ::read(ends[0], buffer.data(), buffer.size())) > 0;)
    text.append(buffer.data(), static_cast<std::size_t>(n));
  ::close(ends[0]);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << text;
  return text;
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(Membership, TheLowestRankThatIsThereSaysOnceWhoIsMissing) {
  const std::string text = said_by(0, nullptr);
  EXPECT_EQ(count(text, "rendezvous: rank 0 of 3 has waited "), 1U) << text;
  EXPECT_EQ(count(text, " s for rank 2; GRADWIRE_LOG=info"), 1U) << text;
  EXPECT_EQ(said_by(1, nullptr), "") << "rank 0 is there and says it";
}

TEST(Membership, AtLevelInfoEachRankSaysItAgainAndAgain) {
  const auto times = [](const std::string& text) { return count(text, "rendezvous: rank 1 of 3 has waited "); };
  std::string text = said_by(1, "info");
  if (times(text) < 2) text = said_by(1, "info", std::chrono::seconds(20));  // the machine stood still
  EXPECT_GT(times(text), 1U) << text;
}

TEST(Membership, NothingIsSaidWhereTheLogIsOff) { EXPECT_EQ(said_by(0, "off"), ""); }

// A store in which something happens right before the call of a number; calls count from 1.
class EventfulStore final : public ForwardingStore {
 public:
  EventfulStore(std::shared_ptr<Store> store, int call, std::function<void()> event)
      : ForwardingStore(std::move(store)), left_(call), event_(std::move(event)) {}
  bool has_happened() const { return left_ <= 0; }
  std::shared_ptr<Store> clone() override { return underlying()->clone(); }

 private:
  void forward(const std::function<void(Store&)>& call) override {
    if (--left_ == 0) event_();
    call(*underlying());
  }

  int left_;
  const std::function<void()> event_;
};

// Ranks 0 and 1 of three fail and rank 1 ends, while rank 2 comes. Wherever between two calls of rank 2 that is, rank 2
// gets their failure, and does not wait in the next generation for ranks that will not come.
TEST(Membership, ARankThatComesAsTheOthersFailGetsTheirFailure) {
  int moments = 0;
  for (bool happened = true; happened; ++moments) {
    const auto store = std::make_shared<HashStore>();
    store->set("g0/rank/0", process_identity());
    store->set("g0/rank/1", process_identity());
    store->add("g0/came", 2);
    store->add("g0/heard", 2);
    const auto eventful = std::make_shared<EventfulStore>(store, moments + 1, [&] {
      store->set("g0/rank/1", test_support::ended_process());
      store->compare_set("g0/outcome", "", "mismatch:two ranks have the number 1");
    });
    try {
      const Membership membership(eventful, 2, 3, Milliseconds(600));
      ADD_FAILURE() << "joined at moment " << moments;
    } catch (const MismatchError& error) {
      EXPECT_NE(std::string(error.what()).find("number 1"), std::string::npos) << error.what();
    } catch (const TimeoutError& error) {
      EXPECT_FALSE(eventful->has_happened()) << "moment " << moments << ": " << error.what();
    }
    happened = eventful->has_happened() && moments < 12;
  }
  EXPECT_GT(moments, 10);
}

// A process that lives until it is killed, and its name.
struct WaitingProcess {
  WaitingProcess() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe(ends.data()), 0);
    number = ::fork();
    if (number == 0) {
      const std::string own = process_identity();
      if (::write(ends[1], own.data(), own.size()) < 0) ::_exit(1);
      for (;;) ::pause();
    }
    ::close(ends[1]);
    std::array<char, 256> buffer{};
    const ssize_t bytes = ::read(ends[0], buffer.data(), buffer.size());
    ::close(ends[0]);
    name.assign(buffer.data(), static_cast<std::size_t>(std::max<ssize_t>(bytes, 0)));
  }
  ~WaitingProcess() { kill(); }
  WaitingProcess(const WaitingProcess&) = delete;
  WaitingProcess& operator=(const WaitingProcess&) = delete;
  void kill() {
    if (number <= 0) return;
    ::kill(number, SIGKILL);
    ::waitpid(std::exchange(number, 0), nullptr, 0);
  }

  pid_t number = 0;
  std::string name;
};

// What all ranks throw is the same, whichever of them was the first to give up.
TEST(Membership, ARankThatDoesNotComeIsNamedByAllThatWait) {
  const auto store = std::make_shared<HashStore>();
  const auto waits = [&](int rank, Milliseconds timeout) {
    try {
      const Membership membership(store, rank, 3, timeout);
      ADD_FAILURE() << "rank 2 has not come";
    } catch (const TimeoutError& error) {
      EXPECT_EQ(error.peers(), std::vector<int>{2}) << "rank " << rank << ": " << error.what();
    }
  };
  std::thread patient([&] { waits(1, std::chrono::minutes(1)); });
  waits(0, Milliseconds(300));
  patient.join();
}

// The process of rank 0 may serve the store, so rank 0 stays for those who come later.
TEST(Membership, WhoDisagreesAboutTheWorldWaitsForTheLargest) {
  for (const bool smaller_first : {true, false}) {
    const auto store = std::make_shared<HashStore>();
    std::atomic<bool> ended{false};
    const auto comes = [&](int rank, int world_size) {
      EXPECT_THROW(Membership(store, rank, world_size, std::chrono::minutes(1)), MismatchError) << "rank " << rank;
      if (rank == 0) ended = true;
    };
    std::thread first([&] { smaller_first ? comes(1, 2) : comes(0, 3); });
    const std::string claim = smaller_first ? "g0/rank/1" : "g0/rank/0";
    store->wait(std::span(&claim, 1), std::chrono::minutes(1));
    std::thread second([&] { smaller_first ? comes(0, 3) : comes(1, 2); });
    const std::string heard = "g0/outcome";
    store->wait(std::span(&heard, 1), std::chrono::minutes(1));
    std::this_thread::sleep_for(Milliseconds(300));  // long after both have heard
    EXPECT_FALSE(ended) << "rank 2 has not come yet";
    comes(2, 3);
    first.join();
    second.join();
  }
}

// A rank that has died is not waited for; who has not come yet is, for a moment.
TEST(Membership, AfterADeathRankZeroStaysUntilTheOthersHaveHeard) {
  std::atomic<bool> ended{false};
  const auto store = std::make_shared<HashStore>();
  WaitingProcess one;
  store->set("g0/rank/1", one.name);
  store->add("g0/came", 1);
  std::thread zero([&] {
    EXPECT_THROW(Membership(store, 0, 3, std::chrono::minutes(1)), PeerError);
    ended = true;
  });
  const std::string claim = "g0/rank/0";
  store->wait(std::span(&claim, 1), std::chrono::minutes(1));
  one.kill();
  const std::string outcome = "g0/outcome";
  store->wait(std::span(&outcome, 1), std::chrono::minutes(1));
  std::this_thread::sleep_for(Milliseconds(300));
  EXPECT_FALSE(ended) << "rank 2 has not come yet";
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THROW(Membership(store, 2, 3, std::chrono::minutes(1)), PeerError);
  zero.join();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(3)) << "rank 1 was waited for";
}

// A store whose calls wait while it is held.
class HeldStore final : public ForwardingStore {
 public:
  explicit HeldStore(std::shared_ptr<Store> store) : ForwardingStore(std::move(store)) {}
  void hold(bool held) {
    held_ = held;
    held_.notify_all();
  }
  std::shared_ptr<Store> clone() override { return underlying()->clone(); }

 private:
  void forward(const std::function<void(Store&)>& call) override {
    held_.wait(true);
    call(*underlying());
  }

  std::atomic<bool> held_{false};
};

// Rank 2 hears of a death and ends, before rank 0 hears of it: it counts once.
TEST(Membership, ARankThatHasHeardAndEndedDoesNotStandForOneThatHasNotHeard) {
  std::atomic<bool> ended{false};
  const auto store = std::make_shared<HashStore>();
  const auto of_zero = std::make_shared<HeldStore>(store);
  WaitingProcess one;
  store->set("g0/rank/1", one.name);
  store->add("g0/came", 1);
  const auto comes = [](const std::shared_ptr<Store>& through, int rank) {
    EXPECT_THROW(Membership(through, rank, 4, std::chrono::minutes(1)), PeerError) << "rank " << rank;
  };
  const auto await = [&](const std::string& key) { store->wait(std::span(&key, 1), std::chrono::minutes(1)); };
  std::thread zero([&] {
    comes(of_zero, 0);
    ended = true;
  });
  await("g0/rank/0");
  of_zero->hold(true);
  std::thread two([&] { comes(store, 2); });
  await("g0/rank/2");
  one.kill();
  two.join();
  store->set("g0/rank/2", test_support::ended_process());
  of_zero->hold(false);
  std::this_thread::sleep_for(Milliseconds(300));
  EXPECT_FALSE(ended) << "rank 3 has not come yet";
  comes(store, 3);
  zero.join();
}

// Far from the numbers of those that come first.
TEST(Membership, ARankThatDiedInAnEarlierJobIsNoneOfThisOne) {
  const test_support::TemporaryFolder folder;
  const std::string file = concat(folder.path(), "/store");
  const pid_t child = ::fork();
  if (child == 0) {
    const Membership membership(std::make_shared<FileStore>(file), 30, 40, std::chrono::minutes(1));
    ::_exit(1);
  }
  const auto store = std::make_shared<FileStore>(file);
  const std::string claim = "g0/rank/30";
  store->wait(std::span(&claim, 1), std::chrono::minutes(1));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  try {
    const Membership membership(store, 0, 40, Milliseconds(1500));
    ADD_FAILURE() << "it is alone";
  } catch (const TimeoutError& error) {
    EXPECT_EQ(error.peers().size(), 39U) << error.what();
  }
}

// A store that counts calls, and in which nobody waits for so short a time that the ranks look for each other
// meanwhile.
class PatientCountingStore final : public test_support::CountingStore {
 public:
  using CountingStore::CountingStore;
  using Store::wait;
  void wait(std::span<const std::string> keys, Milliseconds /*timeout*/) override {
    CountingStore::wait(keys, std::chrono::minutes(1));
  }
};

// How often `ranks` ranks ask the store on their way into a generation, and to their end.
int calls_of(int ranks) {
  const auto store = std::make_shared<PatientCountingStore>(std::make_shared<HashStore>());
  test_support::run_ranks("threads", ranks, [&](int rank, const std::shared_ptr<Store>&) {
    const Membership membership(store, rank, ranks, std::chrono::minutes(1));
  });
  return store->calls();
}

TEST(Membership, ARankAsksTheStoreAFewThingsHoweverManyRanksThereAre) {
  for (const int ranks : {4, 64, 256}) {
    const int calls = calls_of(ranks);
    std::printf("%d ranks: %d calls of the store\n", ranks, calls);
    EXPECT_LT(calls, 30 * ranks) << ranks << " ranks";
  }
}

// The others leave one after the other while rank 0 waits for them.
TEST(Membership, RankZeroAsksLittleWhileTheOthersLeave) {
  constexpr int kRanks = 128;
  const auto store = std::make_shared<test_support::CountingStore>(std::make_shared<HashStore>());
  std::vector<std::unique_ptr<Membership>> memberships(kRanks);
  test_support::run_ranks("threads", kRanks, [&](int rank, const std::shared_ptr<Store>&) {
    memberships[static_cast<std::size_t>(rank)] =
        std::make_unique<Membership>(rank == 0 ? store : store->underlying(), rank, kRanks, std::chrono::minutes(1));
  });
  const int before = store->calls();
  std::atomic<bool> waits{true};
  std::thread zero([&] {
    memberships.front()->let_others_hear();
    waits = false;
  });
  for (int rank = 1; rank < kRanks; ++rank) {
    EXPECT_TRUE(waits) << "rank " << rank << " has not left";
    memberships[static_cast<std::size_t>(rank)].reset();
    std::this_thread::sleep_for(Milliseconds(2));
  }
  zero.join();
  const int calls = store->calls() - before;
  std::printf("%d ranks: %d calls of rank 0\n", kRanks, calls);
  EXPECT_LT(calls, 30 * kRanks);
}

TEST(Membership, ARankThatStopsOnItsWayIsToldOf) {
  const auto store = std::make_shared<HashStore>();
  store->set("g0/rank/1", process_identity());
  try {
    const Membership membership(store, 0, 2, Milliseconds(300));
    ADD_FAILURE() << "rank 1 has not come";
  } catch (const TimeoutError& error) {
    EXPECT_EQ(std::string(error.what()),
              "rendezvous: rank 0: of 2 ranks, all of which said who they are, one did not come within 300 ms");
  }
}

TEST(Membership, RankZeroStaysUntilTheOthersHaveLeft) {
  const auto store = std::make_shared<HashStore>();
  std::unique_ptr<Membership> other;
  std::thread joins([&] { other = std::make_unique<Membership>(store, 1, 2, std::chrono::minutes(1)); });
  Membership zero(store, 0, 2, std::chrono::minutes(1));
  joins.join();
  std::atomic<bool> has_left{false};
  std::thread leaves([&] {
    std::this_thread::sleep_for(Milliseconds(300));
    has_left = true;
    other.reset();
  });
  zero.let_others_hear();
  EXPECT_TRUE(has_left);
  leaves.join();
}

// A rank that the store counted twice does not stand for one that has not come.
TEST(Membership, RanksAreWaitedForThoughTheStoreRepeatsItsCalls) {
  const auto store = std::make_shared<test_support::RepeatingStore>(std::make_shared<HashStore>());
  try {
    const Membership membership(store, 0, 2, Milliseconds(300));
    ADD_FAILURE() << "rank 1 has not come";
  } catch (const TimeoutError& error) {
    EXPECT_EQ(error.peers(), std::vector<int>{1}) << error.what();
  }
  const auto other_store = std::make_shared<test_support::RepeatingStore>(std::make_shared<HashStore>());
  std::thread other([&] { EXPECT_NO_THROW(Membership(other_store, 1, 2, std::chrono::minutes(1))); });
  EXPECT_NO_THROW(Membership(other_store, 0, 2, std::chrono::minutes(1)));
  other.join();
}

// Rank 0, which serves the store, dies while rank 1 comes or waits. Once rank 1 has come, the death is rank 0's.
TEST(Membership, TheDeathOfTheRankThatServesTheStoreIsThatRanks) {
  int deaths = 0;
  for (int moment = 1; moment < 20; ++moment) {
    const auto store = std::make_shared<HashStore>();
    WaitingProcess zero;
    store->set("g0/rank/0", zero.name);
    const auto broken = std::make_shared<EventfulStore>(store, moment, [&] {
      zero.kill();
      throw StoreError("the connection broke");
    });
    try {
      const Membership membership(broken, 1, 3, Milliseconds(700));
      ADD_FAILURE() << "rank 2 has not come";
    } catch (const PeerError& error) {
      EXPECT_EQ(error.peers(), std::vector<int>{0}) << error.what();
      ++deaths;
    } catch (const StoreError&) {
      EXPECT_EQ(deaths, 0) << "at moment " << moment << " rank 1 had come";
    } catch (const TimeoutError&) {
      EXPECT_FALSE(broken->has_happened()) << "moment " << moment;
      break;
    }
  }
  EXPECT_GT(deaths, 2);
}

// A store whose server stands still: each call takes as long as it may.
class StandingStore final : public ForwardingStore {
 public:
  explicit StandingStore(std::shared_ptr<Store> store) : ForwardingStore(std::move(store)) {}
  std::shared_ptr<Store> clone() override { return underlying()->clone(); }
  using Store::wait;
  void wait(std::span<const std::string> keys, Milliseconds limit) override {
    if (!stands) return ForwardingStore::wait(keys, limit);
    waited.push_back(limit);
    throw TimeoutError("the server did not answer in time");
  }
  bool stands = false;
  std::vector<Milliseconds> waited;

 private:
  void forward(const std::function<void(Store&)>& call) override {
    if (!stands) return call(*underlying());
    waited.push_back(timeout());
    throw TimeoutError("the server did not answer in time");
  }
};

TEST(Membership, ARankThatLeavesDoesNotWaitForAServerThatStandsStill) {
  const auto store = std::make_shared<StandingStore>(std::make_shared<HashStore>());
  {
    const Membership membership(store, 0, 1, std::chrono::minutes(1));
    store->stands = true;
  }
  Milliseconds all{0};
  for (const Milliseconds waited : store->waited) all += waited;
  EXPECT_FALSE(store->waited.empty());
  EXPECT_LE(all, std::chrono::seconds(1));
  EXPECT_EQ(store->timeout(), kDefaultTimeout) << "the store is the user's";
}

// A rank that was told of a mismatch stays until the others, who may be on their way, have heard of the mismatch: its
// process is what tells them that the failure is theirs.
TEST(Membership, ARankWithAMismatchWaitsForTheOthersToHearOfIt) {
  const auto store = std::make_shared<HashStore>();
  store->set("g0/rank/1", "of another host");
  std::thread other([&] {
    const std::string outcome = "g0/outcome";
    store->wait(std::span(&outcome, 1), std::chrono::minutes(1));
    std::this_thread::yield();
    store->add("g0/heard", 1);
    store->set("g0/all_heard", "1");
  });
  EXPECT_THROW(Membership(store, 1, 2, Milliseconds(600)), MismatchError);
  const std::string all = "g0/all_heard";
  EXPECT_TRUE(store->check(std::span(&all, 1)));
  other.join();
}

}  // namespace
}  // namespace gradwire::internal

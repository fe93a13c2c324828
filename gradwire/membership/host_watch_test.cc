// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Hosts of an elastic job: their launchers report deaths, and a host that falls silent takes its members along.
#include "gradwire/membership/host_watch.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/process_identity.h"
#include "gradwire/base/strings.h"
#include "gradwire/membership/coordinator.h"
#include "gradwire/store/forwarding_store.h"
#include "gradwire/store/hash_store.h"
#include "tests/support/counting_store.h"
#include "tests/support/temporary_folder.h"

namespace gradwire::membership::host_watch_test {
namespace {

// A process that runs until it is killed, with its identity.
class Sleeper {
 public:
  Sleeper() {
    int ends[2];
    if (::pipe(ends) != 0) throw std::runtime_error("no pipe");
    pid_ = ::fork();
    if (pid_ == 0) {
      const std::string identity = process_identity();
      [[maybe_unused]] const auto written = ::write(ends[1], identity.data(), identity.size());
      for (;;) ::pause();
    }
    char text[256] = {};
    if (::read(ends[0], text, sizeof(text) - 1) <= 0) throw std::runtime_error("no identity");
    ::close(ends[0]);
    ::close(ends[1]);
    identity_ = text;
  }
  ~Sleeper() { kill(); }
  void kill() {
    if (pid_ < 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  const std::string& identity() const { return identity_; }

 private:
  pid_t pid_ = -1;
  std::string identity_;
};

class HostWatchTest : public ::testing::Test {
 protected:
  CoordinatorOptions options(Milliseconds host_timeout) const {
    CoordinatorOptions options;
    options.roster = {.min = 1, .max = 4, .first = 2};
    options.journal = folder_ / "journal";
    options.host_timeout = host_timeout;
    return options;
  }
  static void settle(Coordinator& coordinator) {
    while (coordinator.step(Milliseconds(0))) {
    }
  }

  std::shared_ptr<Store> store_ = std::make_shared<HashStore>();
  const test_support::TemporaryFolder scratch_;
  const std::filesystem::path folder_ = scratch_.path();
};

// The name of a process on a host that nobody here can see.
const std::string kFarAway = "another-kernel/pid:[1] 4711 1000 0";

TEST_F(HostWatchTest, HostsHaveNamesOfTheirOwn) {
  const HostWatch one(store_);
  const HostWatch other(store_);
  EXPECT_NE(one.host(), other.host());
  EXPECT_NE(one.host(), "");
}

TEST_F(HostWatchTest, ADeathIsReportedByTheHostThatVouchesForTheProcess) {
  EventLog log(store_);
  log.append(Joined{kFarAway, "1", "net"});
  HostWatch watch(store_);
  HostWatch other(store_);
  Sleeper sleeper;
  const std::int64_t member = log.append(Joined{sleeper.identity(), "1", "net", watch.host()});
  watch.look_for_the_dead();
  EXPECT_FALSE(log.read(member + 1, Milliseconds(0)));
  sleeper.kill();
  other.look_for_the_dead();
  EXPECT_FALSE(log.read(member + 1, Milliseconds(0))) << "a host reported another one's member";
  watch.look_for_the_dead();
  const auto text = log.read(member + 1, Milliseconds(0));
  ASSERT_TRUE(text);
  const Event event = event_of(*text);
  ASSERT_NE(std::get_if<Died>(&event), nullptr);
  EXPECT_EQ(std::get<Died>(event).member, member);
  EXPECT_EQ(std::get<Died>(event).host, "") << "its host goes on";
  watch.look_for_the_dead();
  EXPECT_FALSE(log.read(member + 2, Milliseconds(0))) << "it was reported twice";
}

// Launchers count these deaths once: nothing says that each of these processes failed by itself.
TEST_F(HostWatchTest, MembersThatTheirLauncherEndsAreLostWithTheirHost) {
  HostWatch watch(store_);
  EventLog log(store_);
  Sleeper sleeper;
  const std::int64_t member = log.append(Joined{sleeper.identity(), "1", "net", watch.host()});
  watch.look_for_the_dead();
  watch.gives_up();
  sleeper.kill();
  watch.look_for_the_dead();
  const auto text = log.read(member + 1, Milliseconds(0));
  ASSERT_TRUE(text);
  const Event event = event_of(*text);
  ASSERT_NE(std::get_if<Died>(&event), nullptr);
  EXPECT_EQ(std::get<Died>(event).host, watch.host());
}

// On a real host the coordinator cannot see it, so it must not rely on that where it can, as in a test.
TEST_F(HostWatchTest, TheCoordinatorLeavesTheProcessesOfAnotherHostToItsLauncher) {
  HostWatch watch(store_);
  EventLog log(store_);
  Sleeper sleeper;
  log.append(Joined{process_identity(), "1", "net"});
  const std::int64_t member = log.append(Joined{sleeper.identity(), "1", "net", watch.host()});
  Coordinator coordinator(store_, options(std::chrono::minutes(2)));
  settle(coordinator);
  sleeper.kill();
  for (int looks = 0; looks < 3; ++looks) coordinator.step(Milliseconds(0));
  EXPECT_EQ(coordinator.roster().members.at(member).standing, Roster::Standing::running);
  watch.look_for_the_dead();
  settle(coordinator);
  EXPECT_EQ(coordinator.roster().members.at(member).standing, Roster::Standing::gone);
}

TEST_F(HostWatchTest, AQuietJobIsAskedTwoThingsASecond) {
  const auto counting = std::make_shared<test_support::CountingStore>(store_);
  HostWatch watch(counting);
  const auto begin = Deadline::Clock::now();
  watch.look_for_the_dead();
  std::map<int, int> looks;  // by their requests
  while (looks[2] < 2) {
    const int before = counting->calls();
    watch.look_for_the_dead();
    ++looks[counting->calls() - before];
    ASSERT_LT(Deadline::Clock::now() - begin, std::chrono::seconds(60));
  }
  EXPECT_GE(Deadline::Clock::now() - begin, std::chrono::seconds(2));
  EXPECT_EQ(looks.size(), 2U) << "the other looks ask nothing";
  EXPECT_GT(looks[0], 0);
}

// A process may join and end between two looks. Whoever has started it knows when it ends.
TEST_F(HostWatchTest, AMemberThatEndsSoonIsReportedAtOnce) {
  HostWatch watch(store_);
  watch.look_for_the_dead();
  EventLog log(store_);
  Sleeper sleeper;
  const std::int64_t member = log.append(Joined{sleeper.identity(), "1", "net", watch.host()});
  sleeper.kill();
  watch.look_for_the_dead(/*has_news=*/true);
  const auto text = log.read(member + 1, Milliseconds(0));
  ASSERT_TRUE(text);
  const Event event = event_of(*text);
  ASSERT_NE(std::get_if<Died>(&event), nullptr);
  EXPECT_EQ(std::get<Died>(event).member, member);
}

// The numbers of events begin anew in a store that is made from the coordinator's journal.
TEST_F(HostWatchTest, AMemberOfAnotherStoreIsFound) {
  store_->set(kStoreKey, "one");
  HostWatch watch(store_);
  EventLog log(store_);
  for (int other = 0; other < 3; ++other) log.append(Joined{kFarAway, "1", concat("net", other)});
  watch.look_for_the_dead();
  for (int number = 1; number <= 3; ++number) store_->delete_key(event_key(number));
  store_->set(kEventsEndKey, "0");
  store_->set(kStoreKey, "another");
  Sleeper sleeper;
  ASSERT_EQ(log.append(Joined{sleeper.identity(), "1", "net", watch.host()}), 1);
  sleeper.kill();
  const Deadline guard = Deadline::after(std::chrono::seconds(60));
  while (!log.read(2, Milliseconds(0)) && !guard.expired()) watch.look_for_the_dead();
  const auto text = log.read(2, Milliseconds(0));
  ASSERT_TRUE(text) << "the host does not know its member of the store that came";
  const Event event = event_of(*text);
  ASSERT_NE(std::get_if<Died>(&event), nullptr);
  EXPECT_EQ(std::get<Died>(event).member, 1);
}

// A store that refuses to tell whether a key is there, once it is told to.
class RefusingStore final : public ForwardingStore {
 public:
  explicit RefusingStore(std::shared_ptr<Store> store) : ForwardingStore(std::move(store)) {}
  std::shared_ptr<Store> clone() override { return std::make_shared<RefusingStore>(underlying()->clone()); }
  bool check(std::span<const std::string> keys) override {
    if (keys.front() == refused) throw StoreError("the store is gone");
    return ForwardingStore::check(keys);
  }

  std::string refused;

 private:
  void forward(const std::function<void(Store& store)>& call) override { call(*underlying()); }
};

// Its number is that of another host's member in the store that came, and that member has to leave.
TEST_F(HostWatchTest, AMemberOfAStoreThatIsGoneIsNotAskedFor) {
  const auto refusing = std::make_shared<RefusingStore>(store_);
  store_->set(kStoreKey, "one");
  HostWatch watch(refusing);
  EventLog log(store_);
  ASSERT_EQ(log.append(Joined{kFarAway, "1", "net", watch.host()}), 1);
  log.append(Left{1});
  refusing->refused = dropped_key(1);
  EXPECT_THROW(watch.look_for_the_dead(/*has_news=*/true), StoreError);
  refusing->refused = "";
  for (int number = 1; number <= 2; ++number) store_->delete_key(event_key(number));
  store_->set(kEventsEndKey, "0");
  store_->set(kStoreKey, "another");
  ASSERT_EQ(log.append(Joined{kFarAway, "1", "net", "another host"}), 1);
  store_->set(dropped_key(1), "it and member 2 do not reach each other");
  watch.look_for_the_dead(/*has_news=*/true);
  ASSERT_TRUE(watch.has_read_all());
  EXPECT_EQ(watch.why_dropped(), std::nullopt);
}

// A store at the end of a long link.
class SlowStore final : public ForwardingStore {
 public:
  explicit SlowStore(std::shared_ptr<Store> store) : ForwardingStore(std::move(store)) {}
  std::shared_ptr<Store> clone() override { return std::make_shared<SlowStore>(underlying()->clone()); }

 private:
  void forward(const std::function<void(Store& store)>& call) override {
    std::this_thread::sleep_for(Milliseconds(2));
    call(*underlying());
  }
};

// The thread that reads also gives the host's signs of life, so it reads a long log in parts. A member whose end it has
// not read yet is not reported.
TEST_F(HostWatchTest, ALongLogIsReadInParts) {
  HostWatch watch(std::make_shared<SlowStore>(store_));
  EventLog log(store_);
  Sleeper left;
  Sleeper died;
  const std::int64_t first = log.append(Joined{left.identity(), "1", "net", watch.host()});
  for (int i = 0; i < 300; ++i) log.append(Leaving{1000 + i});
  log.append(Left{first});
  const std::int64_t last = log.append(Joined{died.identity(), "1", "net", watch.host()});
  left.kill();
  died.kill();
  int looks = 0;
  const Deadline guard = Deadline::after(std::chrono::seconds(60));
  for (; !log.read(last + 1, Milliseconds(0)) && !guard.expired(); ++looks) watch.look_for_the_dead(/*has_news=*/true);
  EXPECT_GE(looks, 2);
  const auto text = log.read(last + 1, Milliseconds(0));
  ASSERT_TRUE(text);
  const Event event = event_of(*text);
  ASSERT_NE(std::get_if<Died>(&event), nullptr);
  EXPECT_EQ(std::get<Died>(event).member, last);
  watch.look_for_the_dead(/*has_news=*/true);
  EXPECT_FALSE(log.read(last + 2, Milliseconds(0)));
}

TEST_F(HostWatchTest, AMemberThatLeftIsNotReported) {
  HostWatch watch(store_);
  EventLog log(store_);
  Sleeper sleeper;
  const std::int64_t member = log.append(Joined{sleeper.identity(), "1", "net", watch.host()});
  watch.look_for_the_dead();  // so that it knows the member
  log.append(Left{member});
  sleeper.kill();
  watch.look_for_the_dead();
  EXPECT_FALSE(log.read(member + 2, Milliseconds(0)));
}

TEST_F(HostWatchTest, AHostKnowsWhyItsMembersHadToLeave) {
  HostWatch watch(store_);
  HostWatch other(store_);
  EventLog log(store_);
  const auto leaves = [&](const std::string& why, bool while_it_waits = false) {
    const std::int64_t member = log.append(Joined{process_identity(), "1", "net", watch.host()});
    if (!why.empty()) store_->set(dropped_key(member), why);
    if (while_it_waits) {
      log.append(Died{member, kLeftWaiting});
    } else {
      log.append(Left{member});
    }
    for (HostWatch* const each : {&watch, &other}) each->look_for_the_dead(/*has_news=*/true);
    EXPECT_FALSE(other.why_dropped()) << "a member of another host";
    return member;
  };
  leaves("");
  leaves(kDroppedSlow);
  EXPECT_FALSE(watch.why_dropped());
  const std::int64_t member = leaves("it and member 1 do not reach each other", /*while_it_waits=*/true);
  EXPECT_EQ(watch.why_dropped(),
            concat("member ", member, " had to leave, because it and member 1 do not reach each other"));
  leaves("it and member 2 do not reach each other");
  EXPECT_TRUE(watch.why_dropped()->starts_with(concat("member ", member, " "))) << "one of them is told";
}

TEST_F(HostWatchTest, AHostThatFallsSilentTakesItsMembersAlong) {
  HostWatch watch(store_);
  EventLog log(store_);
  const std::int64_t here = log.append(Joined{process_identity(), "1", "net"});
  const std::int64_t there = log.append(Joined{kFarAway, "1", "net", watch.host()});
  Coordinator coordinator(store_, options(Milliseconds(40)));
  settle(coordinator);
  ASSERT_EQ(coordinator.roster().epoch, 1);
  const Deadline several_timeouts = Deadline::after(Milliseconds(200));
  while (!several_timeouts.expired()) {
    watch.beat();
    coordinator.step(Milliseconds(1));
  }
  EXPECT_EQ(coordinator.roster().members.at(there).standing, Roster::Standing::running);
  const Deadline guard = Deadline::after(std::chrono::seconds(60));
  while (coordinator.roster().members.at(there).standing != Roster::Standing::gone && !guard.expired())
    coordinator.step(Milliseconds(1));
  EXPECT_EQ(coordinator.roster().members.at(there).standing, Roster::Standing::gone);
  EXPECT_EQ(coordinator.roster().members.at(here).standing, Roster::Standing::running);
  EXPECT_EQ(store_->get(lost_key(1)), std::to_string(there)) << "the members of the epoch are told";
  const auto text = log.read(there + 1, Milliseconds(0));
  ASSERT_TRUE(text);
  const Event event = event_of(*text);
  ASSERT_NE(std::get_if<Died>(&event), nullptr);
  EXPECT_EQ(std::get<Died>(event).host, watch.host()) << "it did not die by itself";
}

// While the coordinator's machine stands still, no host can be heard of.
TEST_F(HostWatchTest, TheTimeInWhichNobodyLookedForBeatsIsNoSilence) {
  const HostWatch watch(store_);
  const std::vector<std::string> hosts{watch.host()};
  const Milliseconds timeout(80);
  HostBeats beats;
  EXPECT_TRUE(beats.silent(*store_, hosts, timeout).empty());
  std::this_thread::sleep_for(2 * timeout);
  EXPECT_TRUE(beats.silent(*store_, hosts, timeout).empty()) << "a quarter of the timeout counts at most";
  const Deadline guard = Deadline::after(std::chrono::seconds(60));
  while (beats.silent(*store_, hosts, timeout).empty() && !guard.expired()) {
  }
  EXPECT_EQ(beats.silent(*store_, hosts, timeout), hosts);
}

TEST_F(HostWatchTest, TheListHasTheHostsThatAreThere) {
  HostList list(store_);
  EXPECT_EQ(list.present(std::chrono::seconds(60)), 0U);
  HostWatch one(store_);
  HostWatch other(store_);
  EXPECT_EQ(list.present(std::chrono::seconds(60)), 2U);
  one.leave();
  EXPECT_EQ(list.present(std::chrono::seconds(60)), 1U);
  const Deadline guard = Deadline::after(std::chrono::seconds(60));
  HostList impatient(store_);
  while (impatient.present(Milliseconds(1)) != 0 && !guard.expired()) {
  }
  EXPECT_EQ(impatient.present(Milliseconds(1)), 0U) << "the other host is silent";
}

TEST_F(HostWatchTest, AHostHearsThatTheJobHasEnded) {
  HostWatch watch(store_);
  EXPECT_FALSE(watch.ended());
  store_->set(kEndedKey, "too many deaths");
  EXPECT_EQ(watch.ended(), "too many deaths");
}

}  // namespace
}  // namespace gradwire::membership::host_watch_test

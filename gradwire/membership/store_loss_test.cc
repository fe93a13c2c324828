// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The server of a job's store is killed with the coordinator, and both start again from the journal: members, hosts and
// what they had told are there again.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <map>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/process_identity.h"
#include "gradwire/membership/coordinator.h"
#include "gradwire/membership/host_watch.h"
#include "gradwire/membership/member.h"
#include "gradwire/membership/patient_store.h"
#include "gradwire/membership/stored_values.h"
#include "gradwire/store/tcp_store.h"
#include "tests/support/ended_process.h"
#include "tests/support/temporary_folder.h"

namespace gradwire::membership::store_loss_test {
namespace {

constexpr auto kLong = std::chrono::minutes(1);
const std::string kNobody = "no process";  // of another host, so the coordinator does not look

// The server and the coordinator of one job, which are lost and started again together.
class StoreLossTest : public ::testing::Test {
 protected:
  void SetUp() override { start(); }
  void TearDown() override { stop_running(); }

  std::string journal() const { return folder_ / "journal"; }
  void start(std::map<std::string, std::string> contents = {}) {
    contents[kStoreKey] = std::to_string(++stores_);
    server_ =
        std::make_shared<TcpStore>(TcpStoreOptions{.port = port_, .is_server = true, .contents = std::move(contents)});
    port_ = server_->port();
    CoordinatorOptions options;
    options.roster = {.min = 1, .max = 4, .first = 2};
    options.journal = journal();
    coordinator_ = std::make_unique<Coordinator>(server_, options);
  }
  void lose_and_start() {
    stop_running();
    coordinator_.reset();
    server_.reset();
    start(restored_store(journal()));
  }

  // Handles all events that are there.
  void settle() {
    while (coordinator_->step(Milliseconds(0))) {
    }
  }
  void run() {
    stop_ = false;
    runner_ = std::thread([this] { coordinator_->run(stop_); });
  }
  void stop_running() {
    stop_ = true;
    if (runner_.joinable()) runner_.join();
  }

  // No store is made from the journal of a job that has ended; the error has `words`.
  void expect_ended(const std::string& words) const {
    try {
      restored_store(journal());
      ADD_FAILURE() << "the job has ended";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  }

  std::shared_ptr<Store> client() const {
    return std::make_shared<PatientStore>(std::make_shared<TcpStore>(TcpStoreOptions{.port = port_}), kLong);
  }
  // A thread that joins as a member.
  std::future<std::unique_ptr<Member>> join() const {
    return std::async(std::launch::async, [store = client()] { return std::make_unique<Member>(store, "net", kLong); });
  }
  // Two members that have met in the first epoch; the coordinator runs.
  std::pair<std::unique_ptr<Member>, std::unique_ptr<Member>> two_that_meet() const {
    auto joins_a = join();
    auto joins_b = join();
    std::pair members(joins_a.get(), joins_b.get());
    if (!members.first->meet() || !members.second->meet()) throw std::runtime_error("there is no first epoch");
    return members;
  }
  static std::future<std::optional<Epoch>> meet(Member& member) {
    return std::async(std::launch::async, [&member] { return member.meet(); });
  }
  // Waits for an event in the store that the coordinator has not read, and returns its number.
  std::int64_t await_unread() const {
    const std::int64_t number = EventLog(server_).noted_end() + 1;
    EXPECT_TRUE(value_of(*server_, event_key(number), kLong));
    return number;
  }

  // The same two, which have begun the first step. The store is lost before the coordinator has read that.
  std::pair<std::unique_ptr<Member>, std::unique_ptr<Member>> two_whose_beginning_is_lost() {
    run();
    auto members = two_that_meet();
    stop_running();
    settle();
    members.first->began(0);
    members.second->began(0);
    lose_and_start();
    return members;
  }
  // Who plays the job again finds that its first epoch began.
  void expect_beginning() {
    stop_running();
    settle();
    EXPECT_TRUE(coordinator_->roster().begun);
    const std::vector<PlayedEpoch> played = read_membership_log(journal());
    ASSERT_EQ(played.size(), 1U);
    EXPECT_EQ(played.front().number, 1);
    EXPECT_EQ(played.front().first_step, 0);
    EXPECT_EQ(played.front().members.size(), 2U);
  }

  const test_support::TemporaryFolder scratch_;
  const std::filesystem::path folder_ = scratch_.path();
  std::uint16_t port_ = 0;
  int stores_ = 0;
  std::shared_ptr<TcpStore> server_;
  std::unique_ptr<Coordinator> coordinator_;
  std::atomic<bool> stop_{false};
  std::thread runner_;
};

// Its program has the result, and the store may never come back.
TEST_F(StoreLossTest, WhoIsDoneOrEndsDoesNotWaitForAStoreThatIsGone) {
  run();
  const auto join_soon = [this] {
    return std::async(std::launch::async,
                      [store = client()] { return std::make_unique<Member>(store, "net", std::chrono::seconds(3)); });
  };
  auto joins_a = join_soon(), joins_b = join_soon();
  auto a = joins_a.get(), b = joins_b.get();
  ASSERT_TRUE(a->meet() && b->meet());
  stop_running();
  coordinator_.reset();
  server_.reset();
  const auto begin = std::chrono::steady_clock::now();
  a->done();
  b.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(kLong) / 2)
      << "the patience of the store is " << kLong.count() << " min";
}

TEST_F(StoreLossTest, MembersThatAreDoneTellItToAStoreThatComesBack) {
  run();
  const auto [a, b] = two_that_meet();
  stop_running();
  coordinator_.reset();
  server_.reset();
  std::vector<std::future<void>> ends;
  for (Member* member : {a.get(), b.get()})
    ends.push_back(std::async(std::launch::async, [member] { member->done(); }));
  start(restored_store(journal()));
  run();
  for (auto& end : ends) end.get();
  const auto last = value_of(*server_, epoch_key(2), Milliseconds(0));
  ASSERT_TRUE(last);
  EXPECT_TRUE(epoch_of(*last).finished);
}

// The other one was killed when its place was about to be taken.
TEST_F(StoreLossTest, AStoreFromAJournalThatAnotherCoordinatorStillWroteIsRefused) {
  auto joins_a = join();
  await_unread();
  settle();
  std::map<std::string, std::string> contents = restored_store(journal());
  auto joins_b = join();
  await_unread();
  settle();
  const auto a = joins_a.get(), b = joins_b.get();
  coordinator_.reset();
  server_.reset();
  EXPECT_THROW(start(std::move(contents)), StoreError);
  coordinator_.reset();
  server_.reset();
  EXPECT_NO_THROW(start(restored_store(journal())));
}

TEST_F(StoreLossTest, TheMembersOfAnEpochMeetAnewAtABoundary) {
  run();
  const auto [a, b] = two_that_meet();
  EXPECT_FALSE(a->stops_before(3));
  lose_and_start();
  settle();
  EXPECT_FALSE(a->stops_before(4));
  EXPECT_FALSE(b->stops_before(4));
  EXPECT_TRUE(a->stops_before(5));
  EXPECT_TRUE(b->stops_before(5));
  run();
  auto meets = meet(*a);
  const auto epoch = b->meet();
  ASSERT_TRUE(epoch);
  EXPECT_EQ(epoch->number, 2);
  EXPECT_EQ(epoch->members.size(), 2U);
  EXPECT_EQ(meets.get()->members, epoch->members);
}

// What one member has seen of the old store, another one must not miss in the new one.
TEST_F(StoreLossTest, AnAgreedBoundaryOutlivesTheStore) {
  run();
  const auto [a, b] = two_that_meet();
  a->ask_to_leave();
  const std::string change = change_key(1);
  server_->wait(std::span(&change, 1), kLong);
  EXPECT_FALSE(a->stops_before(3));
  EXPECT_FALSE(b->stops_before(3));
  EXPECT_TRUE(a->stops_before(4));
  lose_and_start();
  settle();
  EXPECT_TRUE(b->stops_before(4));
}

// Two members joined with events that are lost. The number of the second event is that of another member in the new
// store.
TEST_F(StoreLossTest, TheNumberThatAMemberHadBeforeTheLossMayBeThatOfAnother) {
  EXPECT_EQ(EventLog(client()).append(Joined{kNobody, "1.0", "net", "1"}), 1);
  auto joins = join();
  const std::string second = event_key(2);
  server_->wait(std::span(&second, 1), kLong);
  const std::string version = std::get<Joined>(event_of(server_->get(second))).version;
  coordinator_.reset();
  server_.reset();
  std::map<std::string, std::string> contents = restored_store(journal());
  contents[event_key(1)] = to_text(Joined{kNobody, version, "net", "1"});
  contents[second] = to_text(Joined{kNobody, version, "net", "2"});
  start(std::move(contents));
  run();
  EXPECT_EQ(joins.get()->number(), 3) << "it took another member's number for its own";
}

// The two words that a member says and then waits: that it joins, and that it is ready for the next epoch.
TEST_F(StoreLossTest, WhatTheCoordinatorHadNotReadIsToldAgain) {
  auto joins_a = join();
  await_unread();
  lose_and_start();
  run();
  auto joins_b = join();
  const auto a = joins_a.get();
  const auto b = joins_b.get();
  ASSERT_TRUE(a->meet());
  ASSERT_TRUE(b->meet());
  stop_running();
  settle();
  auto a_meets = meet(*a);
  await_unread();
  lose_and_start();
  run();
  auto b_meets = meet(*b);
  EXPECT_EQ(a_meets.get()->number, 2);
  EXPECT_EQ(b_meets.get()->number, 2);
}

// The same of the last word, after which a member is not there any more.
TEST_F(StoreLossTest, TheEndThatTheCoordinatorHadNotReadIsToldAgain) {
  run();
  const auto [a, b] = two_that_meet();
  stop_running();
  settle();
  auto ends = std::async(std::launch::async, [member = a.get()] { member->done(); });
  await_unread();
  lose_and_start();
  run();
  ends.get();
  stop_running();
  EXPECT_TRUE(coordinator_->roster().finished);
}

// A word after which a member does not wait, but trains: it is told again as the member leaves the epoch.
TEST_F(StoreLossTest, ABeginningThatTheCoordinatorHadNotReadIsToldBeforeTheNextEpoch) {
  const auto [a, b] = two_whose_beginning_is_lost();
  run();
  auto meets = meet(*a);
  const auto epoch = b->meet();
  ASSERT_TRUE(epoch && meets.get());
  EXPECT_EQ(epoch->number, 2);
  EXPECT_FALSE(epoch->fresh) << "the job is not at its beginning any more";
  expect_beginning();
}

TEST_F(StoreLossTest, ABeginningThatTheCoordinatorHadNotReadIsToldBeforeTheEnd) {
  const auto [a, b] = two_whose_beginning_is_lost();
  run();
  a->done();
  expect_beginning();
}

TEST_F(StoreLossTest, ABeginningThatTheCoordinatorHadNotReadIsToldByWhoLeaves) {
  const auto [a, b] = two_whose_beginning_is_lost();
  a->leave();
  expect_beginning();
}

// The numbers of events that were lost go to other events.
TEST_F(StoreLossTest, AHostSeesTheMembersThatCameAfterTheLoss) {
  HostWatch watch(client());
  EventLog log(client());
  log.append(Joined{process_identity(), "1.0", "net", watch.host()});
  settle();
  watch.look_for_the_dead();
  log.append(Leaving{7});
  log.append(Leaving{8});
  watch.look_for_the_dead(/*has_news=*/true);  // the host has read them, and the coordinator has not
  lose_and_start();
  // The host reports it.
  const std::int64_t newcomer = log.append(Joined{test_support::ended_process(), "1.0", "net", watch.host()});
  settle();
  ASSERT_TRUE(coordinator_->roster().members.contains(newcomer));
  const Deadline deadline = Deadline::after(kLong);
  while (coordinator_->roster().members.at(newcomer).standing != Roster::Standing::gone && !deadline.expired()) {
    watch.look_for_the_dead();
    settle();
  }
  EXPECT_EQ(coordinator_->roster().members.at(newcomer).standing, Roster::Standing::gone);
}

TEST_F(StoreLossTest, NoHostGetsTheNameOfAnother) {
  const HostWatch first(client());
  const HostWatch without_members(client());
  EventLog(client()).append(Joined{kNobody, "1.0", "net", first.host()});
  settle();
  lose_and_start();
  const HostWatch third(client());
  EXPECT_NE(third.host(), first.host());
  EXPECT_NE(third.host(), without_members.host());
}

TEST_F(StoreLossTest, AJobThatHasEndedDoesNotGoOn) {
  EventLog log(client());
  for (int i = 0; i < 2; ++i) log.append(Joined{kNobody, "1.0", "net", "1"});
  settle();
  log.append(Done{1});
  settle();
  ASSERT_TRUE(coordinator_->roster().finished);
  expect_ended("has ended: its last step was counted");
}

TEST_F(StoreLossTest, AJobOfWhichNobodyHoldsTheStateDoesNotGoOn) {
  EventLog log(client());
  for (const char* const member : {"a", "b"}) log.append(Joined{kNobody + member, "1.0", "net", "1"});
  settle();
  ASSERT_EQ(coordinator_->roster().epoch, 1);
  log.append(StateLost{1, 1});
  settle();
  ASSERT_TRUE(coordinator_->roster().lost);
  EXPECT_TRUE(course_in_journal(journal()).has_lost_state());
  expect_ended("has ended: no member holds the state");
}

TEST_F(StoreLossTest, AFileThatIsNoJournalIsRefused) {
  std::ofstream(folder_ / "other") << "hello\n";
  EXPECT_THROW(restored_store(folder_ / "other"), StoreError);
  EXPECT_THROW(restored_store(folder_ / "missing"), StoreError);
}

}  // namespace
}  // namespace gradwire::membership::store_loss_test

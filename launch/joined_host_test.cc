// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A host of an elastic job whose store is lost: before the last step it stops its ranks, after it they go on.
#include "launch/joined_host.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "gradwire/base/deadline.h"
#include "gradwire/base/process_identity.h"
#include "gradwire/membership/event_log.h"
#include "gradwire/membership/records.h"
#include "launch/elastic_server.h"
#include "launch/free_port.h"
#include "launch/launch_error.h"

namespace gradwire::launch::joined_host_test {
namespace {

constexpr Milliseconds kHeartbeat{4000};

class JoinedHostTest : public ::testing::Test {
 protected:
  JoinedHostTest() {
    node_.host = "127.0.0.1";
    node_.port = find_free_port(PortScope::loopback);
    node_.heartbeat_timeout = kHeartbeat;
    server_ = std::make_unique<ElasticServer>(node_, "", 3);
    host_ = std::make_unique<JoinedHost>(node_, "", 2, signals_);
  }
  void SetUp() override {
    membership::EventLog log(server_->store());
    member_ = log.append(membership::Joined{process_identity(), "1", "net", host_->name()});
  }
  void tell(const membership::Event& event) {
    membership::EventLog(server_->store()).append(event);
    // The first answer may belong to a look that began before.
    for (int look = 0; look < 2; ++look) {
      host_->on_death();
      EXPECT_TRUE(host_->answers());
    }
  }
  bool is_told_to_stop(Milliseconds within) const {
    pollfd alarm{.fd = host_->alarm_fd(), .events = POLLIN, .revents = 0};
    return ::poll(&alarm, 1, static_cast<int>(within.count())) == 1;
  }

  SignalQueue signals_;
  NodeOptions node_;
  std::unique_ptr<ElasticServer> server_;
  std::unique_ptr<JoinedHost> host_;
  std::int64_t member_ = 0;
};

TEST_F(JoinedHostTest, AHostTakesTheJobsIdAndRefusesAnother) {
  EXPECT_FALSE(server_->job_id().empty());
  EXPECT_EQ(host_->job_id(), server_->job_id());
  NodeOptions other = node_;
  other.job_id = "another";
  try {
    const JoinedHost refused(other, "", 2, signals_);
    ADD_FAILURE() << "it joined";
  } catch (const LaunchError& error) {
    EXPECT_NE(std::string(error.what()).find("was started with --job-id another"), std::string::npos) << error.what();
  }
}

TEST_F(JoinedHostTest, TwoRunsOfAJobWithOneIdAreToldApart) {
  EXPECT_EQ(host_->run_id(), server_->run_id());
  NodeOptions named;
  named.host = "127.0.0.1";
  named.port = find_free_port(PortScope::loopback);
  named.job_id = server_->job_id();
  const ElasticServer again(named, "", 3);
  EXPECT_EQ(again.job_id(), server_->job_id());
  EXPECT_NE(again.run_id(), server_->run_id());
}

TEST_F(JoinedHostTest, AJobThatGoesOnFromItsJournalIsTheRunThatItsHostsKnow) {
  const std::string before = host_->run_id();
  server_.reset();
  server_ = std::make_unique<ElasticServer>(node_, "", 3, std::map<std::string, std::string>{{"a", "b"}});
  const Deadline guard = Deadline::after(std::chrono::minutes(1));
  while (!host_->answers() && !guard.expired()) std::this_thread::yield();
  EXPECT_EQ(JoinedHost(node_, "", 1, signals_).run_id(), before);
}

TEST_F(JoinedHostTest, TheRanksOfAllHostsHaveNumbersOfTheirOwn) {
  EXPECT_EQ(host_->first_rank(), 3) << "the server said so";
  const JoinedHost second(node_, "", 4, signals_);
  EXPECT_EQ(second.first_rank(), 5);
  EXPECT_EQ(JoinedHost(node_, "", 1, signals_).first_rank(), 9);
}

TEST_F(JoinedHostTest, TheRanksStopWhenTheStoreIsGone) {
  tell(membership::Began{member_, 1, 0});
  server_.reset();
  EXPECT_TRUE(is_told_to_stop(std::chrono::minutes(1)));
  const std::string reason = host_->leave();
  EXPECT_NE(reason.find("has not answered for 4 s"), std::string::npos) << reason;
}

TEST_F(JoinedHostTest, WhyItsRanksHadToLeaveIsKnownOnceTheHostLeaves) {
  server_->store()->set(membership::dropped_key(member_), "it and member 1 do not reach each other");
  membership::EventLog(server_->store()).append(membership::Left{member_});
  EXPECT_EQ(host_->leave(), "");
  EXPECT_NE(host_->why_dropped().find(" had to leave, because it and member 1 do not reach each other"),
            std::string::npos)
      << host_->why_dropped();
}

TEST_F(JoinedHostTest, AfterTheLastStepTheRanksMaySaveTheirResults) {
  tell(membership::Done{member_});
  server_.reset();
  EXPECT_FALSE(is_told_to_stop(3 * kHeartbeat / 2));
  EXPECT_EQ(host_->leave(), "");
}

}  // namespace
}  // namespace gradwire::launch::joined_host_test

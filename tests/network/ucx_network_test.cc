// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Tests the backend ucx between hosts with separate networks: a sum, a pulled cable, a host without a way to another,
// a rank without the job's secret.
#include <algorithm>
#include <chrono>
#include <memory>

#include "bench/network_hosts.h"
#include "gradwire/base/strings.h"
#include "launch/launcher_fixture_internal.h"

namespace gradwire::launch {
namespace {

using bench::NetworkHosts;
using Words = std::vector<std::string>;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

class UcxNetworkTest : public LauncherTest {
 protected:
  void SetUp() override {
    const std::string reason = NetworkHosts::why_not();
    if (!reason.empty()) GTEST_SKIP() << reason;
    hosts_ = std::make_unique<NetworkHosts>(kHosts + 1);
    LauncherTest::SetUp();
  }
  void TearDown() override {
    if (hosts_ != nullptr) LauncherTest::TearDown();
  }

  // Rank `rank` of `size` on the host of the same number modulo kHosts, with `variables` ("NAME=value") set.
  BackgroundProgram rank(int rank, int size, const Words& variables = {}, const Words& more = {}) const {
    return rank_on(rank % kHosts, rank, size, variables, more);
  }
  BackgroundProgram rank_on(int host, int rank, int size, const Words& variables = {}, const Words& more = {}) const {
    Words words = hosts_->enter(host);
    words.emplace_back("env");
    words.insert(words.end(), variables.begin(), variables.end());
    for (const std::string& word : {std::string(UCX_RANK_PROGRAM), std::to_string(rank), std::to_string(size),
                                    hosts_->address(0), std::string("29555")}) {
      words.push_back(word);
    }
    words.insert(words.end(), more.begin(), more.end());
    return BackgroundProgram(scratch(concat("rank", rank)), words);
  }

  static constexpr int kHosts = 2;
  std::unique_ptr<NetworkHosts> hosts_;
};

TEST_F(UcxNetworkTest, RanksOfTwoHostsSumUp) {
  auto zero = rank(0, 4);
  auto one = rank(1, 4);
  auto two = rank(2, 4);
  auto three = rank(3, 4);
  int number = 0;
  for (BackgroundProgram* each : {&zero, &one, &two, &three}) {
    const Result result = each->finish();
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
    EXPECT_EQ(result.out, concat("rank ", number++, " of 4: sum 10\n"));
    EXPECT_EQ(result.err, "") << "the library prints nothing";
  }
  EXPECT_GT(hosts_->traffic(1).sent, 4'000'000U) << "the bytes went another way";
}

TEST_F(UcxNetworkTest, APulledCableIsNoticedOnBothSidesAndTheRanksAreNamed) {
  auto zero = rank(0, 2, {}, {"wait"});
  auto one = rank(1, 2, {}, {"wait"});
  zero.wait_for("sum 3");
  one.wait_for("sum 3");
  hosts_->set_link(1, false);
  const auto pulled = std::chrono::steady_clock::now();
  const Result first = zero.finish();
  const Result second = one.finish();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - pulled;
  EXPECT_TRUE(contains(first.out, "PeerError [1]")) << first.out << first.err;
  EXPECT_TRUE(contains(second.out, "PeerError [0]")) << second.out << second.err;
  EXPECT_TRUE(contains(first.out, "host-b")) << first.out;
  RecordProperty("noticed_ms", static_cast<int>(took.count() * 1000));
  EXPECT_LT(took.count(), 30) << "a guard against a hang; the deadline is a minute";
}

TEST_F(UcxNetworkTest, AShortBreakOfTheLinkIsNoEnd) {
  auto zero = rank(0, 2, {"GRADWIRE_HEARTBEAT_MS=20000"}, {"wait"});
  auto one = rank(1, 2, {}, {"wait"});
  zero.wait_for("sum 3");
  one.wait_for("sum 3");
  hosts_->set_link(1, false);
  hosts_->set_link(1, true);
  // It goes on: some megabytes more cross the link.
  const auto before = hosts_->traffic(1).sent;
  const auto guard = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (hosts_->traffic(1).sent < before + 40'000'000 && std::chrono::steady_clock::now() < guard) {
  }
  EXPECT_GE(hosts_->traffic(1).sent, before + 40'000'000);
}

TEST_F(UcxNetworkTest, AnInterfaceWithoutAWayToTheOthersIsNamedInTheError) {
  auto zero = rank(0, 2, {"GRADWIRE_INTERFACE=lo"});
  auto one = rank(1, 2);
  const Result first = zero.finish();
  EXPECT_EQ(first.exit_code, 1);
  // Both ranks find that there is no way, and the first to say so is quoted by the other.
  EXPECT_TRUE(contains(first.out, "PeerError [")) << first.out;
  EXPECT_TRUE(contains(first.out, "cannot talk to rank")) << first.out;
  EXPECT_TRUE(contains(first.out, "GRADWIRE_INTERFACE")) << first.out;
  // Its store went with rank 0, so it may not have heard why.
  EXPECT_EQ(one.finish().exit_code, 1);
}

// All three reach the store.
TEST_F(UcxNetworkTest, RanksThatDoNotReachEachOtherSaySoLongBeforeTheDeadline) {
  hosts_->cut(1, 2);
  const Words patient = {"GRADWIRE_HEARTBEAT_MS=4000"};  // a rank may not run for a while
  auto zero = rank_on(0, 0, 3, patient);
  auto one = rank_on(1, 1, 3, patient);
  auto two = rank_on(2, 2, 3, patient);
  // Both find that nothing comes from the other one, and the first to say so may be quoted by the other.
  for (const Result& result : {one.finish(), two.finish()}) {
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_TRUE(contains(result.out, "PeerError [2] rendezvous failed: rank 1 cannot talk to rank 2 (on host-c): ") ||
                contains(result.out, "PeerError [1] rendezvous failed: rank 2 cannot talk to rank 1 (on host-b): "))
        << result.out << result.err;
    EXPECT_TRUE(contains(result.out, "nothing has come from there for ")) << result.out;
  }
  const Result quotes = zero.finish();
  EXPECT_TRUE(contains(quotes.out, " cannot talk to rank ")) << quotes.out << quotes.err;
}

TEST_F(UcxNetworkTest, ARankWithoutTheSecretIsRefused) {
  auto zero = rank(0, 2, {"GRADWIRE_SECRET=the job's"});
  auto stranger = rank(1, 2, {"GRADWIRE_SECRET=another"});
  const Result refused = stranger.finish();
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_TRUE(contains(refused.out, "secret")) << refused.out;
  auto one = rank(1, 2, {"GRADWIRE_SECRET=the job's"});
  EXPECT_EQ(one.finish().out, "rank 1 of 2: sum 3\n");
  EXPECT_EQ(zero.finish().out, "rank 0 of 2: sum 3\n");
}

}  // namespace
}  // namespace gradwire::launch

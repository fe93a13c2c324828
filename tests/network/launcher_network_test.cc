// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Tests gradwire-run on hosts with separate networks: pulled cables, hosts that return, foreign clients.
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>

#include "bench/network_hosts.h"
#include "gradwire/base/strings.h"
#include "launch/launch_error.h"
#include "launch/launcher_fixture_internal.h"
#include "tests/support/secrets.h"

namespace gradwire::launch {
namespace {

using bench::NetworkHosts;
using Words = std::vector<std::string>;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

class LauncherNetworkTest : public LauncherTest {
 protected:
  void SetUp() override {
    const std::string reason = NetworkHosts::why_not();
    if (!reason.empty()) GTEST_SKIP() << reason;
    hosts_ = std::make_unique<NetworkHosts>(2);
    LauncherTest::SetUp();
  }
  void TearDown() override {
    if (hosts_ == nullptr) return;
    LauncherTest::TearDown();
    for (int host = 0; host < hosts_->count(); ++host) EXPECT_EQ(hosts_->processes(host).size(), 1U);
  }

  // The launcher of one host.
  BackgroundProgram node(const std::string& name, int node, const Words& more, const Words& program) const {
    Words words = {"-n",           "2",
                   "--nnodes",     "2",
                   "--node-rank",  std::to_string(node),
                   "--rendezvous", hosts_->address(0) + ":29400",
                   "--grace",      "0"};
    if (std::find(more.begin(), more.end(), "--heartbeat-timeout") == more.end()) {
      words.insert(words.end(), {"--heartbeat-timeout", heartbeat_});
    }
    words.insert(words.end(), more.begin(), more.end());
    words.insert(words.end(), program.begin(), program.end());
    return launch(name, words, hosts_->enter(node));
  }

  std::unique_ptr<NetworkHosts> hosts_;
  // In seconds. Long, but where a host is missed: a machine may be silent for a while itself.
  std::string heartbeat_ = "20";
};

const Words kSum = {STORE_RANK_PROGRAM};
const Words kWait = {STORE_RANK_PROGRAM, "wait"};

TEST_F(LauncherNetworkTest, TheHostsAreApartAndTheLinkHasItsRate) {
  hosts_->shape("100mbit");
  // 4 MB through 100 Mbit/s take a third of a second; a loopback would take none of it.
  const std::string script = concat("cat /dev/zero | head -c 4000000 > /dev/tcp/", hosts_->address(1), "/5001");
  Words server = hosts_->enter(1);
  Words client = hosts_->enter(0);
  for (const char* word : {"python3", "-c",
                           "import socket\ns = socket.create_server(('', 5001))\nprint('up', flush=True)\n"
                           "c = s.accept()[0]\nn = 0\nwhile d := c.recv(65536): n += len(d)\nprint(n)"}) {
    server.emplace_back(word);
  }
  for (const std::string& word : {std::string("bash"), std::string("-c"), script}) client.push_back(word);
  BackgroundProgram sink(scratch("sink"), server);
  sink.wait_for("up");
  const auto before = hosts_->traffic(1);
  const Result sent = BackgroundProgram(scratch("source"), client).finish();
  EXPECT_EQ(sent.exit_code, 0) << sent.err;
  const Result received = sink.finish();
  EXPECT_EQ(received.out, "up\n4000000\n");
  EXPECT_GE(hosts_->traffic(1).received - before.received, 4000000U);
  EXPECT_LE(hosts_->traffic(1).received - before.received, 4400000U) << "bytes that are nobody's";
  EXPECT_GT(received.seconds, 0.25) << "a guarantee of the shaping, not a measure of speed";
}

TEST_F(LauncherNetworkTest, TwoHostsMakeOneJob) {
  auto first = node("0", 0, {}, kSum);
  auto second = node("1", 1, {}, kSum);
  const Result results[] = {first.finish(), second.finish()};
  for (int rank = 0; rank < 4; ++rank) {
    const Result& result = results[rank / 2];
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_TRUE(contains(
        result.out, concat("[rank ", rank, "] rank ", rank, " of 4 on host-", "ab"[rank / 2], ", attempt 0: sum 10\n")))
        << result.out;
  }
}

TEST_F(LauncherNetworkTest, AShellStartsTheHosts) {
  std::ofstream(scratch("ssh")) << hosts_->shell_script();
  ::chmod(scratch("ssh").c_str(), 0700);
  const auto result = run({"--hosts", "host-a,host-b", "--ssh", scratch("ssh"), "--rendezvous",
                           hosts_->address(0) + ":29400", "-n", "2", kSum[0]});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_TRUE(contains(result.out, concat("rank ", rank, " of 4 on host-", "ab"[rank / 2], ", attempt 0: sum 10")))
        << result.out;
  }
  const auto none = run({"--hosts", "host-c", "--ssh", scratch("ssh"), "-n", "1", kSum[0]});
  EXPECT_EQ(none.exit_code, 255);
  EXPECT_TRUE(contains(none.err, "no such host: host-c")) << none.err;
}

// It serves a store of its own, and its --rendezvous leads to that of the other job.
TEST_F(LauncherNetworkTest, ASecondJobThatBeginsOnAnotherHostIsRefusedAndHarmsNobody) {
  const Words until_told = {"/bin/sh", "-c",
                            concat(STORE_RANK_PROGRAM, "; while [ ! -e ", scratch("end"), " ]; do sleep 0.05; done")};
  auto first = node("0", 0, {"--job-id", "mine"}, until_told);
  auto second = node("1", 1, {"--job-id", "mine"}, until_told);
  first.wait_for("sum 10", 2);
  const Result other = launch("other",
                              {"-n", "1", "--nnodes", "3", "--node-rank", "0", "--job-id", "other", "--rendezvous",
                               hosts_->address(0) + ":29400", kSum[0]},
                              hosts_->enter(1))
                           .finish();
  EXPECT_EQ(other.exit_code, kHostsFailedExit);
  EXPECT_TRUE(
      contains(other.err, "another job's store answers there; --rendezvous must name an address of node 0's own"))
      << other.err;
  std::ofstream(scratch("end")) << "now";
  for (BackgroundProgram* each : {&first, &second}) {
    const Result result = each->finish();
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
}

TEST_F(LauncherNetworkTest, AHostThatVanishesIsNamedWithItsRanks) {
  heartbeat_ = "3";
  auto first = node("0", 0, {}, kWait);
  auto second = node("1", 1, {}, kWait);
  first.wait_for("sum 10", 2);
  second.wait_for("sum 10", 2);
  hosts_->set_link(1, false);
  const auto pulled = std::chrono::steady_clock::now();
  const Result zero = first.finish();
  const Result one = second.finish();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - pulled;
  EXPECT_EQ(zero.exit_code, kHostLostExit);
  EXPECT_TRUE(contains(zero.err, "node 1 (host-b, ranks 2, 3) has not been heard of for 3 s")) << zero.err;
  EXPECT_EQ(one.exit_code, kHostLostExit);
  EXPECT_TRUE(contains(one.err, "node 0 (host-a, ranks 0, 1) has not answered for 3 s")) << one.err;
  EXPECT_LT(took.count(), 30) << "a guard against a hang; the deadline is 3 s";
}

// Ranks that stay where they are in the first attempt, and end in the next.
Words waits_at_first() {
  return {"/bin/sh", "-c",
          concat("[ $GRADWIRE_ATTEMPT = 0 ] && exec ", STORE_RANK_PROGRAM, " wait; exec ", STORE_RANK_PROGRAM)};
}

TEST_F(LauncherNetworkTest, AHostThatComesBackTakesPartInTheRestart) {
  heartbeat_ = "3";
  const Words restarts = {"--max-restarts", "3"};
  auto first = node("0", 0, restarts, waits_at_first());
  auto second = node("1", 1, restarts, waits_at_first());
  first.wait_for("sum 10", 2);
  second.wait_for("sum 10", 2);
  hosts_->set_link(1, false);
  first.wait_for("all ranks start again (restart 1 of 3)");
  second.wait_for("all ranks start again (restart 1 of 3)");
  hosts_->set_link(1, true);
  const Result results[] = {first.finish(), second.finish()};
  for (const Result& result : results) {
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(count_of(result.out, "attempt 1: sum 10"), 2) << result.out;
  }
}

TEST_F(LauncherNetworkTest, AHostThatIsStartedAnewTakesItsPlace) {
  heartbeat_ = "3";
  const Words restarts = {"--max-restarts", "5"};
  auto first = node("0", 0, restarts, waits_at_first());
  auto second = std::make_unique<BackgroundProgram>(node("1", 1, restarts, waits_at_first()));
  second->wait_for("sum 10", 2);
  second.reset();  // kill -9, as a host that loses its power
  auto again = node("2", 1, restarts, waits_at_first());
  const Result results[] = {first.finish(), again.finish()};
  for (const Result& result : results) {
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(count_of(result.out, "attempt 1: sum 10"), 2) << result.out;
  }
  EXPECT_TRUE(contains(results[0].err, "all ranks start again")) << results[0].err;
}

TEST_F(LauncherNetworkTest, AShortBreakOfTheLinkIsNoEnd) {
  auto first = node("0", 0, {"--heartbeat-timeout", "20"}, {"/bin/sh", "-c", concat(STORE_RANK_PROGRAM, "; read x")});
  auto second = node("1", 1, {"--heartbeat-timeout", "20"}, kSum);
  first.wait_for("sum 10", 1);
  hosts_->set_link(1, false);
  hosts_->set_link(1, true);
  EXPECT_EQ(first.finish().exit_code, 1) << "read finds no input";
  EXPECT_EQ(second.finish().exit_code, 1);
}

TEST_F(LauncherNetworkTest, StrangersAreHarmless) {
  if (!test_support::has_secrets()) GTEST_SKIP() << test_support::kNoSecrets;
  std::ofstream(scratch("secret")) << "the job's\n";
  std::filesystem::permissions(scratch("secret"), std::filesystem::perms::owner_read);
  const Words secret = {"--secret-file", scratch("secret")};
  auto first = node("0", 0, secret, kSum);
  const std::string noise =
      "import os, socket, sys\n"
      "for i in range(100):\n"
      "  for n in range(50):\n"
      "    try: s = socket.create_connection((sys.argv[1], 29400)); break\n"
      "    except OSError: import time; time.sleep(0.05)\n"
      "  try:\n"
      "    s.sendall([b'GET / HTTP/1.1\\r\\n\\r\\n', os.urandom(500), b'gwtcpc\\x01\\x00' + os.urandom(64), "
      "b'gwtcpc\\x09\\x00'][i % 4])\n"
      "    s.settimeout(20)\n"
      "    while s.recv(4096): pass\n"
      "  except ConnectionError: pass\n"
      "print('closed', i + 1)";
  Words stranger = hosts_->enter(1);
  for (const std::string& word : {std::string("python3"), std::string("-c"), noise, hosts_->address(0)}) {
    stranger.push_back(word);
  }
  const Result noisy = BackgroundProgram(scratch("stranger"), stranger).finish();
  EXPECT_EQ(noisy.out, "closed 100\n") << noisy.err;
  auto second = node("1", 1, secret, kSum);
  const Result results[] = {first.finish(), second.finish()};
  for (const Result& result : results) {
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(count_of(result.out, "sum 10"), 2) << result.out;
  }
}

}  // namespace
}  // namespace gradwire::launch

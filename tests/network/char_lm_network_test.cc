// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Training on two hosts with networks of their own: the losses are those of one host.
#include <cmath>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/network_hosts.h"
#include "gradwire/base/strings.h"
#include "launch/launcher_fixture_internal.h"

namespace gradwire::launch {
namespace {

using bench::NetworkHosts;
using Words = std::vector<std::string>;

class CharLmNetworkTest : public LauncherTest {
 protected:
  void SetUp() override {
    const std::string reason = NetworkHosts::why_not();
    if (!reason.empty()) GTEST_SKIP() << reason;
    hosts_ = std::make_unique<NetworkHosts>(2);
    hosts_->shape("100mbit");
    LauncherTest::SetUp();
    std::ofstream text(scratch("text"));
    for (int i = 0; i < 400; ++i)
      text << i << " green bottles, and " << i * i << " blue ones, on wall " << i % 7 << ".\n";
  }
  void TearDown() override {
    if (hosts_ != nullptr) LauncherTest::TearDown();
  }

  Words program(const std::string& backend, const std::string& hook) const {
    return {CHAR_LM_PROGRAM,
            "--text",
            scratch("text"),
            "--layers",
            "1",
            "--width",
            "64",
            "--heads",
            "2",
            "--context",
            "16",
            "--batch",
            "4",
            "--steps",
            "8",
            "--threads",
            "1",
            "--generate",
            "20",
            "--eval-batches",
            "1",
            "--hook",
            hook,
            "--json",
            scratch("losses"),
            "--log-every",
            "1",
            "--backend",
            backend};
  }

  // What rank 0 wrote, of all steps.
  std::vector<double> losses() const {
    std::vector<double> found;
    std::ifstream in(scratch("losses"));
    for (std::string line; std::getline(in, line);) {
      const auto entry = nlohmann::json::parse(line);
      if (entry.at("type") == "step") found.push_back(entry.at("loss"));
    }
    std::filesystem::remove(scratch("losses"));
    return found;
  }

  std::vector<double> on_one_host(const std::string& hook) {
    Words words = {"-n", "2"};
    const Words rest = program("shm", hook);
    words.insert(words.end(), rest.begin(), rest.end());
    const Result result = run(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return losses();
  }

  std::vector<double> on_two_hosts(const std::string& hook) {
    std::vector<BackgroundProgram> launchers;
    for (int node = 0; node < 2; ++node) {
      Words words = {"-n",           "1",
                     "--nnodes",     "2",
                     "--node-rank",  std::to_string(node),
                     "--rendezvous", hosts_->address(0) + ":29400",
                     "--env",        "GLOO_SOCKET_IFNAME=eth0"};
      const Words rest = program("gloo", hook);
      words.insert(words.end(), rest.begin(), rest.end());
      launchers.push_back(launch(std::to_string(node), words, hosts_->enter(node)));
    }
    for (auto& launcher : launchers) {
      const Result result = launcher.finish();
      EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
    }
    return losses();
  }

  std::unique_ptr<NetworkHosts> hosts_;
};

TEST_F(CharLmNetworkTest, LossesAreThoseOfOneHost) {
  for (const std::string hook : {"allreduce", "int8"}) {
    const auto one = on_one_host(hook);
    const auto before = hosts_->traffic(0).sent;
    const auto two = on_two_hosts(hook);
    EXPECT_GT(hosts_->traffic(0).sent - before, 100'000U) << "the gradients went over the link";
    ASSERT_GE(one.size(), 8U) << hook;
    ASSERT_EQ(one.size(), two.size()) << hook;
    for (std::size_t step = 0; step < one.size(); ++step)
      EXPECT_NEAR(one[step], two[step], 1e-5) << hook << " " << step;
    EXPECT_LT(one.back(), one.front()) << "something was learned";
  }
}

}  // namespace
}  // namespace gradwire::launch

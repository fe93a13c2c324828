// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Tests the backend ucx with more ranks than are connected to each other, on hosts with separate networks: they meet,
// do collectives of all kinds with right results, and leave in good order; all of them name a rank that was killed.
#include <cstdlib>
#include <iostream>
#include <memory>

#include "bench/network_hosts.h"
#include "gradwire/base/strings.h"
#include "launch/launcher_fixture_internal.h"

namespace gradwire::launch {
namespace {

using bench::NetworkHosts;
using Words = std::vector<std::string>;

class WideWorld : public LauncherTest {
 protected:
  void SetUp() override {
    reason_ = NetworkHosts::why_not();
    if (!reason_.empty()) GTEST_SKIP() << reason_;
    LauncherTest::SetUp();
  }
  void TearDown() override {
    if (reason_.empty()) LauncherTest::TearDown();
  }

  // `ranks` ranks, as many on each host, which do `rounds` collectives. Returns what each host printed.
  std::vector<std::string> run(int hosts, int ranks, int rounds, const Words& more = {}) {
    const NetworkHosts network(hosts);
    std::vector<BackgroundProgram> programs;
    const int share = ranks / hosts;
    for (int host = 0; host < hosts; ++host) {
      Words words = network.enter(host);
      // With a hundred ranks for each processor, a rank may not run for seconds.
      if (ranks > 100) words.insert(words.end(), {"env", "GRADWIRE_HEARTBEAT_MS=30000"});
      for (const std::string& word :
           {std::string(WIDE_RANKS_PROGRAM), std::to_string(host * share), std::to_string(share), std::to_string(ranks),
            network.address(0), std::string("29556"), std::to_string(rounds)}) {
        words.push_back(word);
      }
      words.insert(words.end(), more.begin(), more.end());
      programs.emplace_back(scratch(concat("host", host)), words);
    }
    // Each wait has a guard of its own; how long all of it takes depends on the machine.
    for (int round = 25; more.empty() && round <= rounds; round += 25)
      programs[0].wait_for(concat("round ", round, " done"));
    std::vector<std::string> printed;
    for (BackgroundProgram& program : programs) {
      const Result result = program.finish();
      EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
      EXPECT_EQ(result.err, "") << "the library prints nothing";
      std::cout << result.out.substr(result.out.rfind("done\n") == std::string::npos ? 0
                                                                                     : result.out.rfind("done\n") + 5);
      printed.push_back(result.out);
    }
    return printed;
  }

 private:
  std::string reason_;
};

// The number behind `word` in `text`.
double number_after(const std::string& text, const std::string& word) {
  const std::size_t at = text.find(word);
  return at == std::string::npos ? -1 : std::atof(text.c_str() + at + word.size());
}

void expect_few_connections(const std::string& printed, int ranks) {
  int steps = 0;
  while (1 << steps < ranks) ++steps;
  const double at_the_start = number_after(printed, "connections a rank ");
  EXPECT_GT(at_the_start, 0) << printed;
  EXPECT_LE(at_the_start, 2 * steps) << "a rank begins with connections to its partners only";
}

TEST_F(WideWorld, EightyRanksOfTwoHostsDoEverything) {
  const auto printed = run(2, 80, 150);
  expect_few_connections(printed[0], 80);
}

TEST_F(WideWorld, AllOthersNameARankThatWasKilled) {
  const auto printed = run(2, 48, 400, {"29", scratch("killed")});
  int named = 0;
  // "24 ranks named rank 29: ..." on each host.
  for (const std::string& text : printed) {
    const std::size_t at = text.find(" ranks named rank 29");
    ASSERT_NE(at, std::string::npos) << text;
    const std::size_t line = text.rfind('\n', at);
    named += std::atoi(text.c_str() + (line == std::string::npos ? 0 : line + 1));
  }
  EXPECT_EQ(named, 47);
}

TEST_F(WideWorld, SlowTwoHundredAndFiftySixRanksOfFourHostsDoAThousandCollectives) {
  const auto printed = run(4, 256, 1000);
  expect_few_connections(printed[0], 256);
}

}  // namespace
}  // namespace gradwire::launch

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Tests the backend ucx with more ranks than are connected to each other, on hosts with separate networks: they meet,
// do collectives of all kinds with right results, and leave in good order; all of them name a rank that was killed.
// Four ranks, which are all connected, name a rank that was killed at any moment.
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>

#include "bench/network_hosts.h"
#include "gradwire/base/strings.h"
#include "tests/support/network_launcher_test.h"

namespace gradwire::launch {
namespace {

using bench::NetworkHosts;
using Words = std::vector<std::string>;

class WideWorld : public NetworkLauncherTest {
 protected:
  // `ranks` ranks, as many on each host, which do `rounds` collectives. Returns what each host printed.
  std::vector<std::string> run(int hosts, int ranks, int rounds, const Words& more = {}) {
    const NetworkHosts network(hosts);
    std::vector<BackgroundProgram> programs;
    const int share = ranks / hosts;
    for (int host = 0; host < hosts; ++host) {
      Words words = network.enter(host);
      // With many ranks for each processor, a rank may not run for seconds.
      words.insert(words.end(), {"env", "GRADWIRE_HEARTBEAT_MS=30000"});
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

// How the other ranks of all hosts took a death.
struct Death {
  int named = 0;  // how many named the rank
  double last_ms = 0;
  std::string during;
};

// Of what each host printed: "24 ranks named rank 29: half of them after 3.1 ms, all after 5.0 ms", "killed in
// barrier".
Death death_of(int victim, const std::vector<std::string>& printed) {
  Death death;
  for (const std::string& text : printed) {
    const std::size_t at = text.find(concat(" ranks named rank ", victim, ":"));
    if (at != std::string::npos) {
      const std::size_t line = text.rfind('\n', at);
      death.named += std::atoi(text.c_str() + (line == std::string::npos ? 0 : line + 1));
      death.last_ms = std::max(death.last_ms, number_after(text.substr(at), "all after "));
    }
    const std::string kKilled = "killed in ";
    const std::size_t killed = text.find(kKilled);
    if (killed == std::string::npos) continue;
    death.during = text.substr(killed + kKilled.size(), text.find('\n', killed) - killed - kKilled.size());
  }
  return death;
}

constexpr int kNoEnd = 1'000'000;  // rounds, of which a death ends them

TEST_F(WideWorld, AllOthersNameARankThatWasKilled) {
  EXPECT_EQ(death_of(29, run(2, 48, kNoEnd, {"29", scratch("killed"), "200000"})).named, 47);
}

// Prints when the last of them named it, over all kills, and what the killed ranks were doing.
TEST_F(WideWorld, SlowAllOthersNameAnyOfFourRanksKilledAtAnyMoment) {
  constexpr int kKills = 200;
  constexpr int kRanks = 4;
  std::vector<double> times;
  std::map<std::string, int> during;
  for (int kill = 0; kill < kKills; ++kill) {
    const int victim = kill % kRanks;
    const Death death = death_of(
        victim,
        run(2, kRanks, kNoEnd, {std::to_string(victim), scratch("killed"), std::to_string(kill * 7919 % 300'000)}));
    EXPECT_EQ(death.named, kRanks - 1) << "kill " << kill;
    times.push_back(death.last_ms);
    ++during[death.during];
  }
  std::sort(times.begin(), times.end());
  std::cout << kKills << " kills: the last rank named the dead one after " << times[kKills / 2] << " ms (median), "
            << times[kKills * 99 / 100] << " ms (99 %), " << times.back() << " ms (most); killed in";
  for (const auto& [kind, count] : during) std::cout << ' ' << kind << ' ' << count << ',';
  std::cout << '\n';
  EXPECT_EQ(during.size(), 9U) << "a kind of collective was never hit";
}

TEST_F(WideWorld, SlowTwoHundredAndFiftySixRanksOfFourHostsDoAThousandCollectives) {
  const auto printed = run(4, 256, 1000);
  expect_few_connections(printed[0], 256);
}

}  // namespace
}  // namespace gradwire::launch

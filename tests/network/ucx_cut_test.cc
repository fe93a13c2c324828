// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Tests networks that break under more ranks than are connected to each other: a pulled cable between two hosts in the
// middle of calls, and a path that ends between ranks which are no partners, while all other paths stay.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <map>

#include "bench/network_hosts.h"
#include "gradwire/base/strings.h"
#include "tests/support/network_launcher_test.h"

namespace gradwire::launch {
namespace {

using bench::NetworkHosts;
using Ranks = std::vector<int>;

// How a rank's call ended.
struct Ending {
  Ranks named;
  long long at_ms = 0;
  std::string text;
};

class CutNetwork : public NetworkLauncherTest {
 protected:
  // The ranks of `host`. The store is on the host `store`.
  BackgroundProgram start(const NetworkHosts& network, int host, const std::string& what, int size, int store,
                          const Ranks& ranks) const {
    std::vector<std::string> words = network.enter(host);
    words.insert(words.end(), {CUT_RANKS_PROGRAM, what, std::to_string(size), network.address(store), "29557"});
    for (const int rank : ranks) words.push_back(std::to_string(rank));
    return BackgroundProgram(scratch(concat("host", host)), words);
  }

  // By rank, of the lines "rank 3: PeerError [17,18] at 123456 ms: ...".
  static std::map<int, Ending> endings(const std::string& printed) {
    std::map<int, Ending> all;
    for (const std::string& line : lines_of(printed)) {
      const std::string kError = ": PeerError [";
      const std::size_t at = line.find(kError);
      if (!line.starts_with("rank ") || at == std::string::npos) continue;
      Ending& ending = all[std::atoi(line.c_str() + 5)];
      ending.text = line;
      const char* rest = line.c_str() + at + kError.size();
      for (char* end = nullptr; *rest != ']'; rest = *end == ',' ? end + 1 : end) {
        ending.named.push_back(static_cast<int>(std::strtol(rest, &end, 10)));
        if (end == rest) break;
      }
      ending.at_ms = std::atoll(line.c_str() + line.find("] at ") + 5);
    }
    return all;
  }

  static long long now_ms() {
    return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  // Each of `ranks` has named one or more of `others`, and nobody else, long before its deadline of a minute.
  static void expect_to_name(const Ranks& ranks, const Ranks& others, long long cut_ms, const std::string& printed) {
    const std::map<int, Ending> all = endings(printed);
    long long last = 0;
    for (const int rank : ranks) {
      const auto found = all.find(rank);
      if (found == all.end()) {
        ADD_FAILURE() << "rank " << rank << " named nobody:\n" << printed;
        continue;
      }
      const Ending& ending = found->second;
      EXPECT_FALSE(ending.named.empty()) << ending.text;
      for (const int named : ending.named) {
        EXPECT_TRUE(std::find(others.begin(), others.end(), named) != others.end()) << ending.text;
      }
      EXPECT_LT(ending.at_ms - cut_ms, 30'000) << "a guard against a hang: " << ending.text;
      last = std::max(last, ending.at_ms - cut_ms);
    }
    std::cout << ranks.size() << " ranks: the last noticed after " << last << " ms\n";
  }
};

TEST_F(CutNetwork, APulledCableIsNoticedByAllRanksOfBothSidesWhichNameRanksOfTheOther) {
  NetworkHosts network(2);
  constexpr int kRanks = 20;
  Ranks low, high;
  for (int rank = 0; rank < kRanks; ++rank) (rank < kRanks / 2 ? low : high).push_back(rank);
  auto here = start(network, 0, "calls", kRanks, 0, low);
  auto there = start(network, 1, "calls", kRanks, 0, high);
  here.wait_for("calling");
  network.set_link(1, false);
  const long long pulled = now_ms();
  expect_to_name(low, high, pulled, here.finish().out);
  expect_to_name(high, low, pulled, there.finish().out);
}

// Rank 1 is alone on its host; its partners are on another, and the rest on the third.
TEST_F(CutNetwork, APathThatEndsBetweenRanksThatAreNoPartnersIsNoticedByThoseWhoWaitAndByNobodyElse) {
  NetworkHosts network(3);
  constexpr int kRanks = 19;
  const Ranks rest{6, 7, 8, 10, 11, 13, 14, 15};
  const Ranks partners{0, 2, 3, 4, 5, 9, 12, 16, 17, 18};
  auto others = start(network, 0, "messages", kRanks, 1, rest);
  auto between = start(network, 1, "messages", kRanks, 1, partners);
  auto lonely = start(network, 2, "messages", kRanks, 1, {1});
  others.wait_for("waits", static_cast<int>(rest.size()));
  lonely.wait_for("waits");
  network.cut(0, 2);
  const long long cut = now_ms();
  const std::string printed = others.finish().out;
  const std::string printed_by_partners = between.finish().out;
  const std::string printed_by_lonely = lonely.finish().out;
  expect_to_name(rest, {1}, cut, printed);
  expect_to_name({1}, {rest[0]}, cut, printed_by_lonely);
  EXPECT_EQ(count_of(printed_by_partners, ": fine\n"), static_cast<int>(partners.size())) << printed_by_partners;
  EXPECT_EQ(count_of(printed_by_lonely, ": fine\n"), 1) << printed_by_lonely;
  EXPECT_EQ(count_of(printed, concat("rank ", rest[0], ": fine\n")), 1) << printed;
}

}  // namespace
}  // namespace gradwire::launch

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A cable that is pulled between hosts in the middle of a job: from the records of all ranks, the diagnosis says that
// the network is gone, and names the rank that all others miss.
#include <signal.h>

#include <filesystem>
#include <string>
#include <vector>

#include "bench/network_hosts.h"
#include "gradwire/base/strings.h"
#include "tests/support/network_launcher_test.h"

namespace gradwire::launch {
namespace {

using bench::NetworkHosts;

class PulledCable : public NetworkLauncherTest {
 protected:
  // One rank on a host of its own; rank 0 serves the store.
  BackgroundProgram start_rank(const NetworkHosts& network, int rank, int size) const {
    std::vector<std::string> command = network.enter(rank);
    command.insert(command.end(), {FAULT_PROGRAM, "none", "0", "30", "100000000"});
    return BackgroundProgram(scratch(concat("rank", rank)), command,
                             {concat("RANK=", rank), concat("WORLD_SIZE=", size),
                              concat("MASTER_ADDR=", network.address(0)), "MASTER_PORT=29571", "FAULT_BACKEND=ucx",
                              concat("GRADWIRE_FLIGHT_RECORDER=", scratch("files"), "/", rank, ".flight")});
  }
};

TEST_F(PulledCable, TheNetworkIsTheCauseAndTheRankBehindTheCableIsNamed) {
  constexpr int kRanks = 3;
  NetworkHosts network(kRanks);
  std::filesystem::create_directory(scratch("files"));
  std::vector<BackgroundProgram> ranks;
  for (int rank = 0; rank < kRanks; ++rank) ranks.push_back(start_rank(network, rank, kRanks));
  ranks[0].wait_for("calling");
  network.set_link(2, false);
  for (BackgroundProgram& rank : ranks) EXPECT_EQ(rank.finish().exit_code, 1);
  start_program({GRADWIRE_DIAGNOSE_PROGRAM, scratch("files")});
  const Result result = finish();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.out.find("rank 2 is the cause: network gone\n"), std::string::npos) << result.out << result.err;
}

}  // namespace
}  // namespace gradwire::launch

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A launcher that holds an elastic job and starts no ranks.
#include <map>
#include <string>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/membership/journal.h"
#include "gradwire/membership/records.h"
#include "launch/elastic_coordinator.h"
#include "launch/elastic_server.h"
#include "launch/job.h"
#include "launch/launch_error.h"
#include "launch/patient_coordinator.h"
#include "launch/rank_process.h"
#include "launch/say.h"
#include "launch/signals.h"

namespace gradwire::launch {
namespace {

// How long a signal may wait.
constexpr Milliseconds kWait{50};

int serve(const Options& options, const std::string& secret, SignalQueue& signals) {
  const ElasticOptions& job = *options.elastic;
  const bool goes_on = membership::has_begun(job.log);
  std::map<std::string, std::string> contents;
  int next_rank = 0;
  if (goes_on) {
    contents = membership::restored_store(job.log);
    // The journal does not tell how many ranks each host has.
    next_rank = kMaxRanks * std::stoi(contents.at(membership::kHostsKey));
  }
  ElasticServer server(options.node, secret, next_rank, contents);
  PatientCoordinator coordinator(server.store(),
                                 coordinator_options(job, options.ranks, job.log, options.node.heartbeat_timeout));
  const std::string address = server.address();
  if (goes_on) say_unless_it_waits(concat("the elastic job at ", address, " goes on from its journal ", job.log));
  say_unless_it_waits(concat("hosts join with: ", join_command(address, secret)));
  while (!coordinator.roster().is_over() || server.has_hosts()) {
    if (const auto signal = signals.next_that_ends()) {
      server.end(concat("gradwire-run --serve was ended by ", name_of_signal(*signal)));
      server.wait_for_hosts(signals);
      return 128 + *signal;
    }
    coordinator.step(kWait);
  }
  const bool is_lost = coordinator.roster().lost;
  const char* const why = is_lost ? membership::kStateIsLost : "its last step was counted";
  server.end(why);
  server.wait_for_hosts(signals);
  say_unless_it_waits(concat("the job has ", is_lost ? "failed: " : "ended: ", why, ", and all hosts have left"));
  return is_lost ? kLostStateExit : 0;
}

}  // namespace

int run_serve(const Options& options, const std::string& secret, SignalQueue& signals) try {
  return serve(options, secret, signals);
} catch (const InvalidArgument& problem) {
  throw LaunchError(kUsageExit, problem.what());
}

}  // namespace gradwire::launch

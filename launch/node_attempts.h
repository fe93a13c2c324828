// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The ranks of one host in a job over several.
#pragma once

#include <optional>
#include <string>

#include "gradwire/base/deadline.h"
#include "launch/live_watch.h"
#include "launch/node_coordinator.h"
#include "launch/options.h"
#include "launch/rank_environment.h"
#include "launch/rendezvous_folder.h"
#include "launch/signals.h"

namespace gradwire::launch {

// Runs the ranks of this host, an attempt after the other. For one thread.
class NodeAttempts final {
 public:
  // The references outlive the object. `front_fd` becomes readable when the front process has died.
  NodeAttempts(const Options& options, const std::string& secret, SignalQueue& signals, RendezvousFolder& folder,
               int front_fd, Deadline job_end, NodeCoordinator& coordinator);

  struct Ending {
    bool is_abandoned = false;  // the front process has died
    int signal = 0;             // ends the job, and came after the ranks were gone; 0: none
  };
  // Starts the ranks, and returns when they have ended, the coordinator knows of that, and the user has got the report.
  // The coordinator is also told where the ranks cannot be started.
  Ending run(const Plan& plan);

 private:
  JobVariables variables_of(const Plan& plan);
  // Makes what shows how the ranks get on, and names in `job` where they record that.
  void watch(const Plan& plan, JobVariables& job);

  const Options& options_;
  const std::string secret_;
  SignalQueue& signals_;
  RendezvousFolder& folder_;
  const int front_fd_;
  const Deadline job_end_;
  NodeCoordinator& coordinator_;
  std::optional<LiveWatch> live_;  // from the first attempt on that is watched
};

}  // namespace gradwire::launch

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A job from its first start to its last end, restarts included: on one host, as one host of several, or as the one who
// starts gradwire-run on several.
#pragma once

#include <string>
#include <vector>

#include "gradwire/base/deadline.h"
#include "launch/options.h"
#include "launch/rank_environment.h"
#include "launch/rendezvous_folder.h"
#include "launch/signals.h"
#include "launch/supervisor.h"

namespace gradwire::launch {

// Each runs in the keeper, says on stderr what went wrong, and returns the launcher's exit code. When `front_fd`
// becomes readable, nobody waits for that any more. All throw LaunchError.
int run_alone(const Options& options, SignalQueue& signals, RendezvousFolder& folder, int front_fd);
int run_node(const Options& options, const std::string& secret, SignalQueue& signals, RendezvousFolder& folder,
             int front_fd);
// An empty `secret`: one is drawn.
int run_on_hosts(const Options& options, const std::string& secret, SignalQueue& signals, int front_fd);

// The first line that `fd` has, read without a byte more. Throws LaunchError when there is none.
std::string read_secret_line(int fd);

// What the ranks of this host are started with. `job` lacks what only this host knows.
std::vector<RankCommand> rank_commands(const Options& options, JobEnvironment job);

// --timeout, from now.
Deadline job_deadline(const Options& options);

}  // namespace gradwire::launch

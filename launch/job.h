// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A whole job with its restarts: on one host, as one of several hosts, or as the launcher that starts gradwire-run on
// several hosts; and elastic jobs.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/base/deadline.h"
#include "launch/live_watch.h"
#include "launch/options.h"
#include "launch/rank_environment.h"
#include "launch/rendezvous_folder.h"
#include "launch/signals.h"
#include "launch/supervisor.h"

namespace gradwire::launch {

// Each function runs in the keeper, reports failures on stderr, and returns the launcher's exit code. `front_fd`
// becomes readable when the front process has died; the exit code has no reader then. All throw LaunchError.
int run_alone(const Options& options, SignalQueue& signals, RendezvousFolder& folder, int front_fd);
int run_node(const Options& options, const std::string& secret, SignalQueue& signals, RendezvousFolder& folder,
             int front_fd);
// With --elastic, and with --join.
int run_elastic(const Options& options, const std::string& secret, SignalQueue& signals, RendezvousFolder& folder,
                int front_fd);
int run_joined(const Options& options, const std::string& secret, SignalQueue& signals, RendezvousFolder& folder,
               int front_fd);
// With --serve: holds an elastic job without ranks of its own, until its last step has counted and all hosts have left.
// Needs no keeper: a kill leaves nothing behind but the journal.
int run_serve(const Options& options, const std::string& secret, SignalQueue& signals);
// With an empty `secret`, this function makes a random one.
int run_on_hosts(const Options& options, const std::string& secret, SignalQueue& signals, int front_fd);

// Reads the first line of `fd`, and no byte after the line. Throws LaunchError when there is no line.
std::string read_secret_line(int fd);

// Returns the commands that start the ranks of this host. Fills in the fields of `job` that only this host knows.
std::vector<RankCommand> rank_commands(const Options& options, JobVariables job);

// Names in `job` the folder in which the ranks record: that of --record or of GRADWIRE_RECORD, else one in `folder`.
// Returns their files.
std::unique_ptr<LiveSource> record_files(const Options& options, const RendezvousFolder& folder, JobVariables& job);

// Returns what shows how the ranks of this host get on, from record_files(), where the options ask for it. Throws
// LaunchError.
std::optional<LiveWatch> live_watch(const Options& options, const RendezvousFolder& folder, JobVariables& job);

// Returns report() of an outcome of a job with these options.
std::string report_of(const Options& options, const JobOutcome& outcome);

// Returns the deadline of --timeout, counted from now.
Deadline job_deadline(const Options& options);

}  // namespace gradwire::launch

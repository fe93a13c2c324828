// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The coordinator of an elastic job as a process of its own, so that it can be killed and started again alone. The
// process is gradwire-run itself under another command line, which is not for users.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "gradwire/membership/coordinator.h"
#include "launch/options.h"

namespace gradwire::launch {

// Returns the command that coordinates a job which begins with `ranks` ranks. `store` is the store where
// members and coordinator meet (membership::open_job_store()), and `journal` the file of the journal. `host_timeout`:
// as CoordinatorOptions::host_timeout.
std::vector<std::string> coordinator_command(const ElasticOptions& options, int ranks, const std::string& store,
                                             const std::string& journal, std::chrono::milliseconds host_timeout);

// The options of such a coordinator. It tells users on stderr, as say_unless_it_waits().
membership::CoordinatorOptions coordinator_options(const ElasticOptions& options, int ranks, const std::string& journal,
                                                   std::chrono::milliseconds host_timeout);

// Whether the arguments of main() are such a command.
bool is_coordinator_command(int argc, const char* const* argv);

// Runs the coordinator, as PatientCoordinator, until it is killed. Gives signs of life on stdout (pulse.h). Returns an
// exit code, after a sentence on stderr, when the coordinator cannot begin or cannot go on.
int run_coordinator(const char* const* argv) noexcept;

}  // namespace gradwire::launch

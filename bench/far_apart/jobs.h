// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Elastic jobs over hosts made of network namespaces, one worker a host, of which one is killed in each round.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace gradwire::bench {

// What far_apart_worker is told, by name.
using WorkerSettings = std::map<std::string, std::string>;

struct JobOptions {
  int workers = 4;
  std::string rate;             // of each host's link, in tc's units; empty: all workers on this host, without links
  std::int64_t kill_every = 0;  // steps; one worker is killed in each such period; 0: nobody is killed
  unsigned seed = 1;            // of the moments
  std::string programs;         // the folder of gradwire-run and far_apart_worker
  std::string folder;           // of the job, which is made
};

struct JobResult {
  double loss = 0;          // on held-out text, at the end
  double computing = 0;     // the time of forward, backward and inner steps of all workers, divided by their time
  double bytes_a_step = 0;  // that all hosts sent together after step 10, headers included; 0 without links
  double seconds = 0;       // from the first step to the end
  int kills = 0;
};

// Runs a job to its end. Throws std::runtime_error with the launchers' output when the job fails.
JobResult run_job(const JobOptions& options, WorkerSettings settings);

}  // namespace gradwire::bench

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The environment with which each rank is started.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace gradwire::launch {

// The properties that the ranks of one job on one host share.
struct JobVariables {
  int ranks = 1;       // on this host
  int first_rank = 0;  // the number of this host's first rank
  int world = 1;       // ranks on all hosts
  int node = 0;        // this host's number
  int nodes = 1;
  int attempt = 0;           // counts the restarts of the job
  std::string rendezvous;    // a file for the ranks' store, or a method of init_process_group()
  std::string job_id;        // GRADWIRE_JOB_ID: what the user names the job
  std::string run_id;        // GRADWIRE_RUN_ID: another one each time that the job is started; empty: not set
  std::string elastic;       // --elastic: the store of members and coordinator (GRADWIRE_ELASTIC); else empty
  std::string elastic_host;  // --join: the name of this host in the job; else empty
  std::string master_address = "127.0.0.1";
  std::uint16_t master_port = 0;
  std::string secret_file;                                 // holds the job's secret; empty: there is none
  std::vector<std::string> flight_recorders;               // GRADWIRE_FLIGHT_RECORDER by local rank; empty: not set
  std::string record_folder;                               // GRADWIRE_RECORD; empty: not set
  int threads = 1;                                         // OMP_NUM_THREADS unless the user has set it
  bool terminal = false;                                   // the ranks' output is shown on a terminal
  std::vector<std::pair<std::string, std::string>> extra;  // --env; overrides inherited variables
};

// Returns "NAME=VALUE" entries for execve: `inherited` (ended by a null pointer, as `environ` is), then the launcher's
// variables for this host's rank `local_rank`, then `extra`. A later entry replaces an earlier one of the same name. A
// pure function.
std::vector<std::string> rank_environment(const JobVariables& job, int local_rank, const char* const* inherited);

// The environment of this process, for a program that is no rank: "NAME=VALUE" entries.
std::vector<std::string> inherited_environment();

// Returns the name of this host, for texts.
std::string own_host_name();

// Returns 16 hexadecimal digits from the kernel's random numbers. Throws LaunchError.
std::string random_job_id();

// The name of a job and its MASTER_PORT: what the user gave, else (for "" and 0) random_job_id() and a free port of
// the loopback interface. Throw LaunchError.
std::string job_id_or_random(const std::string& given);
std::uint16_t master_port_or_free(std::uint16_t given);

}  // namespace gradwire::launch

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The environment that each rank is started with.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace gradwire::launch {

// What the ranks of one job share.
struct JobEnvironment {
  int ranks = 1;
  std::string rendezvous_file;  // where the ranks' file store goes
  std::string job_id;           // no two jobs share it
  std::uint16_t master_port = 0;
  int threads = 1;                                         // OMP_NUM_THREADS where nobody set it
  bool terminal = false;                                   // the ranks' output is shown on a terminal
  std::vector<std::pair<std::string, std::string>> extra;  // --env; goes over what is inherited
};

// "NAME=VALUE" entries for execve: `inherited` (ended by a null pointer, as `environ` is), then what the launcher sets
// for `rank`, then `extra`; a later entry takes the place of an earlier one of the same name. A pure function.
std::vector<std::string> rank_environment(const JobEnvironment& job, int rank, const char* const* inherited);

// A TCP port on 127.0.0.1 that was free a moment ago: another process may take it before rank 0 does, which is why
// gradwire's own ranks meet through the file instead. Throws LaunchError.
std::uint16_t find_free_port();

// 16 hexadecimal digits from the kernel's random numbers. Throws LaunchError.
std::string random_job_id();

}  // namespace gradwire::launch

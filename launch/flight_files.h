// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The memory in which the ranks of this host record their calls, and which outlives the ranks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "gradwire/base/os_handles.h"
#include "gradwire/observe/flight_table.h"

namespace gradwire::launch {

// One memory file for each rank, without a name in any folder. A rank opens its file through the launcher's descriptor,
// so only processes of the same user can. Where the kernel refuses memory, the rank records in private memory.
class FlightFiles {
 public:
  explicit FlightFiles(int ranks);

  int ranks() const noexcept { return static_cast<int>(files_.size()); }
  // The value of GRADWIRE_FLIGHT_RECORDER for a rank of this host; empty where the rank has no file. Valid in the
  // process that made this object.
  std::string path(int rank) const;
  // What the rank has recorded so far; nothing where it has recorded nothing. `rank` counts from 0 on this host.
  std::optional<observe::RankTable> read(int rank) const;
  // What processes recorded that had the same rank before, and were replaced: the last four, the oldest first.
  std::vector<observe::RankTable> read_earlier(int rank) const;

 private:
  struct File {
    UniqueFd fd;
    Mapping memory;
  };
  std::vector<File> files_;
};

// Reads the files of the job that a running gradwire-run (`pid`, or its keeper) watches. Throws LaunchError when there
// is no such process or it has no such files.
std::vector<observe::RankTable> read_running_job(int pid);

struct RunningJob {
  int pid = 0;  // of gradwire-run
  std::string command;
};
// The jobs of this user on this host that read_running_job() can read, by process id.
std::vector<RunningJob> running_jobs();

}  // namespace gradwire::launch

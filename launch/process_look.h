// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What a process does, as the kernel tells.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "gradwire/observe/flight_table.h"

namespace gradwire::launch {

struct ProcessLook {
  int pid = -1;
  char state = '?';              // of /proc/PID/stat
  double processor_seconds = 0;  // of all threads so far
  std::int64_t time = 0;         // when the look was taken, in nanoseconds of CLOCK_MONOTONIC
  std::set<long> running = {};   // the threads that run, or would if a processor were free
  // In which the main thread waits ("read"), or where the main thread waits for another thread, a lane of DDP. Empty
  // where that is not known.
  std::string system_call = {};
};

// The text of a file of /proc; empty where the file cannot be read, as when its process ends meanwhile. (A file stream
// throws then.)
std::string read_proc_file(const std::string& path);

// Nothing where there is no such process.
std::optional<ProcessLook> look_at(int pid);

// Fills in what `now` tells, and with an earlier look at the same process also how busy it was in between. A process
// counts as running when its main thread does, or when another thread does in both looks: on a busy machine such a
// thread may get little of a processor.
void add_look(observe::ProcessView& view, const ProcessLook& now, const std::optional<ProcessLook>& before);

// How many processes of this control group the kernel has killed because memory ran out; 0 where that is not known.
long out_of_memory_kills();

}  // namespace gradwire::launch

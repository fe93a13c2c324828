// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What a group of processes could leave behind, and what a group could leave behind in a process that goes on.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "tests/conformance/child_process.h"

namespace gradwire::testing {

// From construction to find(): temporary files of this process and its children go to a folder of their own, and
// orphans of its children become its own children.
class Leftovers {
 public:
  Leftovers();
  ~Leftovers();
  Leftovers(const Leftovers&) = delete;
  Leftovers& operator=(const Leftovers&) = delete;

  // One line for every child process, file in the temporary folder, or new file in /dev/shm. Call it when all children
  // that the test started are reaped.
  std::vector<std::string> find() const;

 private:
  TemporaryFolder folder_;
  std::string old_folder_;
  std::set<std::string> shared_before_;
};

// Waits for the end of a child (or of an orphan that has become one). False when the child comes to none: then it is
// killed.
bool reap(pid_t child);

// What this process holds.
struct Footprint {
  long resident_kib = 0;
  long descriptors = 0;
  long mappings = 0;
  long shared_mappings = 0;  // of memory that other processes map, too
  long threads = 0;
};
Footprint footprint();

// "" when this process holds no more descriptors, threads and shared mappings than `before`, else what it holds. Gives
// threads that have just been joined the time to leave the kernel's list.
std::string grown_since(const Footprint& before);

}  // namespace gradwire::testing

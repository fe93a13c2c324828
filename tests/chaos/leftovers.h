// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Checks that ranks leave no process and no file behind, and that a group leaves nothing behind in a process that
// continues.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "tests/conformance/child_process.h"
#include "tests/support/temporary_folder.h"

namespace gradwire::testing {

// From construction to find(), temporary files of this process and its children go to a separate folder, and this
// process becomes the parent of its children's orphans.
class Leftovers {
 public:
  Leftovers();
  ~Leftovers();
  Leftovers(const Leftovers&) = delete;
  Leftovers& operator=(const Leftovers&) = delete;

  // Returns one line for a child process that goes on running, for every file in the temporary folder, and for every
  // new file in /dev/shm. Call it after all children that the test started were reaped.
  std::vector<std::string> find() const;

 private:
  TemporaryFolder folder_;
  std::string old_folder_;
  std::set<std::string> shared_before_;
};

// Waits for the end of a child, or of an orphan that has become a child. Returns false when the child does not end in
// time; the child is killed then.
bool reap(pid_t child);

// The resources that this process holds.
struct Footprint {
  long resident_kib = 0;
  long descriptors = 0;
  long mappings = 0;
  long shared_mappings = 0;  // of memory that other processes may map too
  long threads = 0;
};
Footprint footprint();

// Returns "" when this process holds no more descriptors, threads and shared mappings than `before`, else a list of
// them. Waits until threads that were just joined have left the kernel's list.
std::string grown_since(const Footprint& before);

}  // namespace gradwire::testing

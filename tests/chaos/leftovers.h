// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What a group of processes could leave behind, and a check that it did not.
#pragma once

#include <set>
#include <string>

#include "tests/conformance/child_process.h"

namespace gradwire::testing {

// From construction to expect_none(): temporary files of this process and its children go to a folder of their own, and
// orphans of its children become its own children.
class Leftovers {
 public:
  Leftovers();
  ~Leftovers();
  Leftovers(const Leftovers&) = delete;
  Leftovers& operator=(const Leftovers&) = delete;

  // Adds failures for every child process, file in the temporary folder, or new file in /dev/shm.
  void expect_none() const;

 private:
  TemporaryFolder folder_;
  std::string old_folder_;
  std::set<std::string> shared_before_;
};

// Resident memory of this process in KiB, descriptors and mappings it holds.
struct Footprint {
  long resident_kib = 0;
  long descriptors = 0;
  long mappings = 0;
};
Footprint footprint();

}  // namespace gradwire::testing

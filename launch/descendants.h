// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What the ranks leave behind: processes that outlive the rank that started them.
#pragma once

#include <sys/types.h>

#include <vector>

namespace gradwire::launch {

// Makes this process the parent of every descendant whose own parent dies (a "child subreaper"), so that none can
// escape, and remembers which children this process had before: those are not the job's.
class Descendants {
 public:
  Descendants();  // throws LaunchError
  // The children that this process has now and that it did not have before, zombies included.
  std::vector<pid_t> children() const;

 private:
  std::vector<pid_t> before_;
};

}  // namespace gradwire::launch

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The processes that the ranks started and that outlive their rank.
#pragma once

#include <sys/types.h>

#include <vector>

namespace gradwire::launch {

// Makes this process a child subreaper: the kernel makes it the parent of every descendant whose own parent dies, so
// the launcher finds all of them. Remembers the children that this process had before; they do not belong to the job.
class Descendants {
 public:
  Descendants();  // throws LaunchError
  // Returns the current children that this process did not have at construction, zombies included.
  std::vector<pid_t> children() const;

 private:
  std::vector<pid_t> before_;
};

}  // namespace gradwire::launch

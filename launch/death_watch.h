// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Tells which rank ended, in the order in which they ended.
#pragma once

#include <vector>

#include "gradwire/base/os_handles.h"

namespace gradwire::launch {

// An epoll set that holds nothing but the ranks' pidfds. The kernel appends a descriptor to the set's ready list at the
// moment when it becomes readable, under the lock that the death itself takes, and hands the list out from the front:
// so the order of deaths survives however late the launcher comes to look. SIGCHLD and waitpid() would lose it.
class DeathWatch {
 public:
  DeathWatch();  // throws LaunchError
  // Watches `pidfd` under the number `rank`; the caller keeps it open until the rank has been reported.
  void add(int rank, int pidfd);
  // The ranks that have ended since the last call, first death first. Does not wait. Remove each with remove().
  std::vector<int> ended() const;
  void remove(int pidfd) noexcept;
  // To poll for POLLIN.
  int fd() const noexcept { return epoll_.get(); }

 private:
  UniqueFd epoll_;
};

}  // namespace gradwire::launch

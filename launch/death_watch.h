// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Reports which ranks ended, in the order of their ends.
#pragma once

#include <string>
#include <vector>

#include "gradwire/base/os_handles.h"

namespace gradwire::launch {

// An epoll set that holds only the ranks' pidfds. The kernel appends a descriptor to the set's ready list when the
// descriptor becomes readable, under the lock that the death itself takes, and returns the list from the front. So the
// order of deaths is kept even if the launcher reads the list late. SIGCHLD and waitpid() would lose this order.
class DeathWatch {
 public:
  DeathWatch();  // throws LaunchError
  // Watches `pidfd` under the number `rank`; the caller keeps it open until the rank has been reported. `name`: "rank
  // 3", for messages. Throws LaunchError.
  void add(int rank, const std::string& name, int pidfd);
  // Returns the ranks that have ended since the last call, the first death first. Does not wait. The caller passes the
  // pidfd of each of these ranks to remove().
  std::vector<int> ended() const;
  void remove(int pidfd) noexcept;
  // The descriptor to poll for POLLIN.
  int fd() const noexcept { return epoll_.get(); }

 private:
  UniqueFd epoll_;
};

}  // namespace gradwire::launch

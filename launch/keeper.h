// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// gradwire-run is two processes, so that kill -9 of one of them leaves no process and no file behind.
//
//   front    the process that the user started: passes signals to the keeper, and returns the keeper's exit code
//   keeper   the front's child, in a session of its own: starts the ranks and watches them
//
// When the front is killed, the keeper reads the end of a pipe, kills the job and removes its files. When the keeper is
// killed, the kernel kills the ranks too; the front becomes the parent of the ranks' remaining children, kills them and
// removes the files. Signals of a terminal reach the front only, so the keeper gets each signal once.
#pragma once

#include <sys/types.h>

#include <functional>

#include "gradwire/base/deadline.h"
#include "launch/signals.h"

namespace gradwire::launch {

// The keeper's name in /proc and in ps: "killall gradwire-run" means the front.
inline constexpr const char* kKeeperName = "gradwire-keeper";

// Whether a process is a keeper: that of a gradwire-run which a rank started, for example. Where the front of such a
// keeper has ended, it ends its job and removes its files by itself, for which it gets kKeeperTime.
bool is_keeper(pid_t pid);
inline constexpr Milliseconds kKeeperTime{3000};

// Forks the keeper, which runs `job(front_fd)`; `front_fd` becomes readable when the front has died. Returns twice: in
// the keeper the result of the job, which must become the keeper's exit code, and in the front this exit code. Both
// processes use `signals`. The end of `watched_fd`, unless it is -1, has the effect of SIGTERM, and the lines of
// signal_lines.h that it brings have that of their signals. Call from a process with one thread. Throws LaunchError: in
// the keeper when the job threw it, in the front when the keeper was killed.
int run_in_keeper(SignalQueue& signals, int watched_fd, const std::function<int(int front_fd)>& job);

}  // namespace gradwire::launch

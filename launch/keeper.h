// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// gradwire-run is two processes, so that kill -9 of either leaves nothing behind.
//
//   front    the process that the user started: passes signals on to the keeper and its exit code back
//   keeper   its child, in a session of its own: starts the ranks and watches them
//
// When the front is killed, the keeper reads the end of a pipe, kills the job and clears up. When the keeper is killed,
// the kernel kills the ranks with it, and what these leave behind becomes the front's, which kills it and clears up.
// Signals of a terminal reach the front only, so the keeper hears each once.
#pragma once

#include <functional>

#include "launch/signals.h"

namespace gradwire::launch {

// Forks the keeper, which runs `job(front_fd)`; `front_fd` becomes readable when the front has died. Returns twice: in
// the keeper what the job returned, which must become its exit code, and in the front that exit code. `signals` is used
// by both. The end of `watched_fd`, unless it is -1, is as good as SIGTERM. Call from a process with one thread. Throws
// LaunchError: in the keeper what the job threw, in the front when the keeper was killed.
int run_in_keeper(SignalQueue& signals, int watched_fd, const std::function<int(int front_fd)>& job);

}  // namespace gradwire::launch

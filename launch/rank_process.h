// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Starts one rank, and reports how the rank ended.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "gradwire/base/os_handles.h"
#include "launch/cpu_share.h"

namespace gradwire::launch {

// How a process ended.
struct ProcessEnd {
  bool by_signal = false;
  int code = 0;  // the exit code, or the signal's number
  bool core_dumped = false;

  bool good() const noexcept { return !by_signal && code == 0; }
  // As in a shell: the exit code, or 128 + signal.
  int exit_code() const noexcept { return by_signal ? 128 + code : code; }
};

// "exit code 3", "signal 11 (SIGSEGV), core dumped"
std::string describe(const ProcessEnd& end);
// "SIGTERM"; "SIG64" for a signal without a name.
std::string name_of_signal(int signal);

// The program and the resources of a rank to start, or of another process that the launcher watches. The caller keeps
// the descriptors.
struct RankStart {
  std::string name;  // "rank 3", for messages
  const std::vector<std::string>& command;
  std::vector<std::string> environment;
  CpuSet cpus;
  int stdin_fd = -1;
  int stdout_fd = -1;
  int stderr_fd = -1;
  sigset_t signal_mask;  // the rank's mask
};

// A process of a rank, for those who look at it from outside.
struct RunningRank {
  int pid = -1;              // -1: it was not started yet, or has ended
  std::int64_t started = 0;  // before its start, in nanoseconds of CLOCK_MONOTONIC
};

// A running rank. The rank is the leader of a session of its own, and so of a process group, which holds its children.
struct RankProcess {
  pid_t pid = -1;
  UniqueFd pidfd;            // readable once the rank has ended
  std::int64_t started = 0;  // as RunningRank::started
};

// Starts a rank, and returns when execve has succeeded. `watch` gets the pidfd before the program begins to run, so
// that it misses no death. The kernel kills the rank when the calling thread dies. Throws LaunchError: program not
// found (127), not executable (126), or the kernel refused something; and what `watch` throws. There is no process
// then.
RankProcess start_rank(const RankStart& start, const std::function<void(int pidfd)>& watch);

// Reaps a process that has ended.
ProcessEnd reap(pid_t pid) noexcept;

}  // namespace gradwire::launch

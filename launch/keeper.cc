// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/keeper.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <optional>

#include "gradwire/base/deadline.h"
#include "gradwire/base/strings.h"
#include "launch/descendants.h"
#include "launch/launch_error.h"
#include "launch/pipe.h"
#include "launch/process_look.h"
#include "launch/rank_process.h"
#include "launch/signal_lines.h"

namespace gradwire::launch {
namespace {

void pass_on(pid_t keeper, int signal) {
  if (signal == SIGCHLD) return;
  ::kill(keeper, signal);
  if (signal != SIGTSTP) return;
  // The shell wants to see the process that it started stop.
  ::raise(SIGSTOP);
  ::kill(keeper, SIGCONT);
}

// Passes on the signals that `fd` tells of. Returns whether it has come to its end.
bool has_ended(int fd, SignalLines& lines, pid_t keeper) {
  char bytes[512];
  const ssize_t count = ::read(fd, bytes, sizeof(bytes));
  if (count > 0) {
    // This process does not stop with the ranks: it has to read that they go on.
    lines.take({bytes, static_cast<std::size_t>(count)}, [&](int signal) { ::kill(keeper, signal); });
  }
  return count == 0 || (count < 0 && errno != EINTR && errno != EAGAIN);
}

ProcessEnd wait_for_keeper(pid_t keeper, SignalQueue& signals, int watched_fd) {
  SignalLines lines;
  while (true) {
    pollfd polled[2] = {{signals.fd(), POLLIN, 0}, {watched_fd, POLLIN, 0}};
    ::poll(polled, 2, -1);
    if (polled[1].revents != 0 && has_ended(watched_fd, lines, keeper)) {
      watched_fd = -1;
      ::kill(keeper, SIGTERM);
    }
    while (const auto signal = signals.next()) pass_on(keeper, *signal);
    siginfo_t info{};
    if (::waitid(P_PID, static_cast<id_t>(keeper), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == keeper) {
      return reap(keeper);
    }
  }
}

// The keeper is gone without having cleared up.
void clear_up(const Descendants& descendants, SignalQueue& signals) {
  const Deadline patience = Deadline::after(kKeeperTime);
  const Deadline give_up = Deadline::after(kKeeperTime + Milliseconds(2000));
  for (auto left = descendants.children(); !left.empty() && !give_up.expired(); left = descendants.children()) {
    for (const pid_t pid : left) {
      if (patience.expired() || !is_keeper(pid)) ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, WNOHANG);
    }
    pollfd polled{signals.fd(), POLLIN, 0};
    ::poll(&polled, 1, 20);
    while (signals.next()) {
    }
  }
}

}  // namespace

bool is_keeper(pid_t pid) { return read_proc_file(concat("/proc/", pid, "/comm")) == concat(kKeeperName, "\n"); }

int run_in_keeper(SignalQueue& signals, int watched_fd, const std::function<int(int front_fd)>& job) {
  const Descendants descendants;
  auto [reader, writer] = make_pipe("to the keeper process");
  const pid_t keeper = ::fork();
  if (keeper < 0) throw_errno("cannot start the keeper process");
  if (keeper == 0) {
    writer.reset();
    ::setsid();
    ::prctl(PR_SET_NAME, kKeeperName);
    return job(reader.get());
  }
  reader.reset();
  const ProcessEnd end = wait_for_keeper(keeper, signals, watched_fd);
  if (!end.by_signal) return end.code;
  clear_up(descendants, signals);
  throw LaunchError(kLaunchFailedExit, concat("the process that watched the ranks died of ", describe(end),
                                              "; the ranks were killed with it"));
}

}  // namespace gradwire::launch

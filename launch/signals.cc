// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/signals.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include "launch/launch_error.h"

namespace gradwire::launch {
namespace {

bool is_ignored(int signal) {
  struct sigaction action {};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

SignalQueue::SignalQueue() {
  sigset_t handled;
  ::sigemptyset(&handled);
  // A blocked signal reaches the descriptor also where it is ignored.
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP}) {
    if (!is_ignored(signal)) ::sigaddset(&handled, signal);
  }
  // SIGCONT continues a process that ignores it, and the ranks have to go on too.
  for (const int signal : {SIGCONT, SIGCHLD}) ::sigaddset(&handled, signal);
  ::sigprocmask(SIG_BLOCK, &handled, &original_);
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);
  // Were SIGCHLD inherited as ignored, the kernel would reap the ranks itself and their ends would be lost.
  ::signal(SIGCHLD, SIG_DFL);
  fd_ = UniqueFd(::signalfd(-1, &handled, SFD_NONBLOCK | SFD_CLOEXEC));
  if (!fd_) throw_errno("cannot make a signal descriptor");
}

std::optional<int> SignalQueue::next() {
  signalfd_siginfo info;
  if (::read(fd_.get(), &info, sizeof(info)) != sizeof(info)) return std::nullopt;
  return static_cast<int>(info.ssi_signo);
}

std::optional<int> SignalQueue::next_that_ends() {
  while (const auto signal = next()) {
    if (ends_job(*signal)) return signal;
  }
  return std::nullopt;
}

bool ends_job(int signal) noexcept {
  return signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT;
}

}  // namespace gradwire::launch

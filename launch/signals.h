// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The launcher's signals, as a descriptor to poll.
#pragma once

#include <signal.h>

#include <optional>

#include "gradwire/base/os_handles.h"

namespace gradwire::launch {

// Blocks the signals that the launcher handles and makes them readable from a descriptor; ignores SIGPIPE. They stay
// blocked when the object goes: a signal that comes as late as that must not change the exit code. One that the
// launcher was started with as ignored (nohup) stays ignored, by it and by the ranks. A forked child that uses the
// object reads its own signals.
class SignalQueue {
 public:
  SignalQueue();  // throws LaunchError
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  // The next signal that has arrived; nothing when there is none. Does not wait.
  std::optional<int> next();
  int fd() const noexcept { return fd_.get(); }
  // The mask before the constructor ran: what ranks are started with.
  const sigset_t& original_mask() const noexcept { return original_; }

 private:
  UniqueFd fd_;
  sigset_t original_;
};

// SIGINT, SIGTERM, SIGHUP and SIGQUIT: the job is to end.
bool ends_job(int signal) noexcept;

}  // namespace gradwire::launch

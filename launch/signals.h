// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The launcher's signals, read from a descriptor.
#pragma once

#include <signal.h>

#include <optional>

#include "gradwire/base/os_handles.h"

namespace gradwire::launch {

// Blocks the signals that the launcher handles, and makes them readable from a descriptor. Ignores SIGPIPE and SIGXFSZ:
// a write that cannot be done fails, and does not end the launcher. The ranks do not ignore these two. The signals
// stay blocked after the destructor, because a late signal must not change the exit code. A signal that was ignored
// when the launcher was started (nohup) stays ignored, by the launcher and by the ranks; but for SIGCONT and SIGCHLD,
// which are always read. A forked child that uses the object reads its own signals.
class SignalQueue {
 public:
  SignalQueue();  // throws LaunchError
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  // Returns the next signal that has arrived, if there is one. Does not wait.
  std::optional<int> next();
  // The same for the next one that ends the job; those before it are dropped.
  std::optional<int> next_that_ends();
  int fd() const noexcept { return fd_.get(); }
  // The mask before the constructor ran; ranks are started with this mask.
  const sigset_t& original_mask() const noexcept { return original_; }

 private:
  UniqueFd fd_;
  sigset_t original_;
};

// Whether the signal ends the job: SIGINT, SIGTERM, SIGHUP and SIGQUIT do.
bool ends_job(int signal) noexcept;

}  // namespace gradwire::launch

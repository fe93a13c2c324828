// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Where the calls of a Reducer are allowed.
#pragma once

#include <atomic>

#include "gradwire/base/process.h"

namespace gradwire::internal {

// Refuses calls in a forked child, in the owner's own hooks, and within a synchronized backward pass. Thread-safe and
// without a lock: a pass may hold the Reducer's lock while hooks run.
class CallGuard final {
 public:
  // `owner`: the owner of the hooks, for HookScope. `rank` is for messages.
  CallGuard(const void* owner, int rank) noexcept : owner_(owner), rank_(rank) {}

  // A synchronized backward pass has begun.
  void begin_pass() noexcept { in_pass_ = true; }
  // The iteration of this pass has ended.
  void end_pass() noexcept { in_pass_ = false; }

  // Throws InvalidArgument between begin_pass() and end_pass(). `what` names the call.
  void require_between_passes(const char* what) const;
  // Throws InvalidArgument when a hook of the owner runs on this thread. `what` names the call.
  void require_outside_hook(const char* what) const;
  // Throws InvalidArgument in a forked child of the process that made this object.
  void require_own_process() const { process_.require_current("A DistributedDataParallel"); }
  // Whether a hook of the owner runs on this thread.
  bool in_hook() const noexcept;
  bool in_own_process() const noexcept { return process_.is_current(); }

 private:
  const void* const owner_;
  const int rank_;
  const OwnerProcess process_;
  std::atomic<bool> in_pass_{false};
};

}  // namespace gradwire::internal

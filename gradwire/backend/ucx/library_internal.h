// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Owners of what UCX hands out, and how gradwire sets UCX up.
//
// UCX is told to leave the process alone: it logs through gradwire's log, and hooks no memory calls and handles no
// signals (ucx_backend.cc). What the user sets in a variable UCX_* wins over what gradwire sets.
#pragma once

#include <ucp/api/ucp.h>

#include <string>
#include <string_view>
#include <vector>

#include "gradwire/base/process.h"

namespace gradwire::ucx {

// Throws ResourceError for UCX's lack of memory or descriptors, InternalError "backend ucx: <call> failed: <UCX's
// words>" for other failures.
void require_ok(ucs_status_t status, const char* call);

// Whether the user has chosen UCX's transports, so that gradwire does not.
bool user_chose_transports();

// UCX for one backend. In a forked child the destructors leave everything as it is: it is the parent's.
class Context {
 public:
  // `interface`: the name of the one network interface; empty: UCX's own choice.
  explicit Context(const std::string& interface);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  ucp_context_h get() const noexcept { return context_; }

 private:
  const OwnerProcess owner_;
  ucp_context_h context_ = nullptr;
};

// Used by one thread at a time.
class Worker {
 public:
  explicit Worker(const std::string& interface);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  ucp_worker_h get() const noexcept { return worker_; }
  // Readable when something has come, once ucp_worker_arm() has succeeded.
  int event_fd() const noexcept { return event_fd_; }
  // What a peer needs to connect; bytes that only UCX reads.
  std::string address() const;
  // Lets nobody connect any more; connections that are there go on. UCX itself knows no way to stop listening, and 1.13
  // ends the process when a stranger speaks the beginning of its protocol and then nonsense.
  void close_door() const noexcept;

 private:
  const OwnerProcess owner_;
  const Context context_;
  ucp_worker_h worker_ = nullptr;
  int event_fd_ = -1;       // UCX's
  std::vector<int> doors_;  // the sockets on which UCX listens; UCX's
};

}  // namespace gradwire::ucx

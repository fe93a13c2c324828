// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Calls into libraries that write to sockets without MSG_NOSIGNAL.
#pragma once

#include <csignal>

namespace gradwire {

// While it lives, a write of this thread to a connection that the other side has closed is an error (EPIPE) and no
// SIGPIPE, which ends a process by default. Threads that are started meanwhile stay so for all their lives. What the
// process does at a SIGPIPE stays as the program has set it, and a SIGPIPE that was pending before stays pending; one
// that comes from elsewhere to this thread meanwhile is lost. Never throws. Objects of one thread may nest; each is
// destroyed on the thread that made it.
class NoSigpipe {
 public:
  NoSigpipe() noexcept;  // blocks the signal on the calling thread
  ~NoSigpipe();
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;

 private:
  sigset_t before_;
  bool pending_before_ = false;
};

}  // namespace gradwire

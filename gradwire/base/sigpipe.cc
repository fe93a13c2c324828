// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/base/sigpipe.h"

#include <cerrno>
#include <ctime>

namespace gradwire {
namespace {

sigset_t only_sigpipe() noexcept {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGPIPE);
  return set;
}

bool is_pending() noexcept {
  sigset_t pending;
  return ::sigpending(&pending) == 0 && ::sigismember(&pending, SIGPIPE) == 1;
}

}  // namespace

NoSigpipe::NoSigpipe() noexcept : before_() {
  const sigset_t pipe = only_sigpipe();
  pending_before_ = is_pending();
  ::pthread_sigmask(SIG_BLOCK, &pipe, &before_);
}

NoSigpipe::~NoSigpipe() {
  const int error = errno;
  const sigset_t pipe = only_sigpipe();
  const timespec now{};
  // A SIGPIPE of this thread's own write has arrived when the write returns.
  while (!pending_before_ && is_pending() && ::sigtimedwait(&pipe, nullptr, &now) < 0 && errno == EINTR) {
  }
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  errno = error;
}

}  // namespace gradwire

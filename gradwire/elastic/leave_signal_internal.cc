// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/elastic/leave_signal_internal.h"

#include <atomic>
#include <cerrno>
#include <cstring>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::internal {
namespace {

std::atomic<bool> asked{false};
static_assert(std::atomic<bool>::is_always_lock_free);  // a signal handler writes it

void on_sigterm(int) { asked.store(true, std::memory_order_relaxed); }

}  // namespace

LeaveSignal::LeaveSignal() {
  asked = false;
  struct sigaction action {};
  action.sa_handler = on_sigterm;
  action.sa_flags = SA_RESTART;
  if (::sigaction(SIGTERM, &action, &before_) != 0)
    throw ResourceError(concat("the handler of SIGTERM cannot be set: ", std::strerror(errno)));
}

LeaveSignal::~LeaveSignal() { ::sigaction(SIGTERM, &before_, nullptr); }

bool leave_was_asked() noexcept { return asked.load(std::memory_order_relaxed); }

}  // namespace gradwire::internal

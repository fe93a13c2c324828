// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// SIGTERM as a wish to leave in good order.
#pragma once

#include <csignal>

namespace gradwire::internal {

// While an object lives, SIGTERM does not end the process, and leave_was_asked() tells that it came. The destructor
// brings back what SIGTERM did before. One object at a time; not thread-safe.
class LeaveSignal {
 public:
  LeaveSignal();
  ~LeaveSignal();
  LeaveSignal(const LeaveSignal&) = delete;
  LeaveSignal& operator=(const LeaveSignal&) = delete;

 private:
  struct sigaction before_ {};
};

// Whether SIGTERM came since the last LeaveSignal was made. Thread-safe.
bool leave_was_asked() noexcept;

}  // namespace gradwire::internal

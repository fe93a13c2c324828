// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Waiting for a network interface that has just come up.
#pragma once

#include <string>

#include "gradwire/base/deadline.h"

namespace gradwire::ucx {

// Waits until the kernel calls `interface` running, and returns whether it does so by the deadline. An interface that
// comes up, as when a container starts, can send and receive for up to a second before the kernel calls it running
// (RFC 2863's operational state); until then UCX does not see it. Returns false at once where the kernel cannot be
// asked. Thread-safe.
bool await_link(const std::string& interface, Deadline deadline);

}  // namespace gradwire::ucx

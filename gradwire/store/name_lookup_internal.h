// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Looks up a host name, no longer than a deadline allows.
#pragma once

#include <string>
#include <vector>

#include "gradwire/base/deadline.h"
#include "gradwire/store/asio_internal.h"

namespace gradwire::store_internal {

// Returns the addresses of `host`, a name or a numeric address, in the order of the system's resolver. Where there are
// none, returns none and sets `error`; asio::error::operation_aborted means that `deadline` came first.
//
// The system's resolver cannot be interrupted, so a thread of its own asks the resolver. Where the deadline comes
// first, that thread goes on: a later call for the same name waits for the thread, and so does the end of the process
// (a resolver with usual settings gives up by itself after 5 to 30 s). Throws ResourceError when a thread is refused,
// std::system_error when a descriptor is refused. Thread-safe; a forked child may call it.
std::vector<asio::ip::address> look_up(const std::string& host, Deadline deadline, asio::error_code& error);

}  // namespace gradwire::store_internal

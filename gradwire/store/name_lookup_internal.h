// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Looks up a host name, no longer than a deadline allows.
#pragma once

#include <string>
#include <vector>

#include "gradwire/base/deadline.h"
#include "gradwire/store/asio_internal.h"

namespace gradwire::store_internal {

// The addresses of `host`, a name or a numeric address, in the order of the system's resolver; none, and `error`, where
// there are none. asio::error::operation_aborted: `deadline` came first.
//
// The system's resolver cannot be interrupted, so a thread of its own asks it. Where the deadline comes first, that
// thread goes on: a later call for the same name waits for it, and the end of the process does (a resolver gives up by
// itself, after 5 to 30 s as it is usually set up). Throws ResourceError where a thread is refused, std::system_error
// where a descriptor is. Thread-safe; a forked child may call it.
std::vector<asio::ip::address> look_up(const std::string& host, Deadline deadline, asio::error_code& error);

}  // namespace gradwire::store_internal

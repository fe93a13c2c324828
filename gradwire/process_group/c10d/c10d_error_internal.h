// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What libtorch's engines throw, as our errors.
#pragma once

#include <exception>
#include <functional>
#include <string>

namespace gradwire::internal {

// `error` as one of ours that begins with `what` ("rank 0 of group 'default' (gloo): all_reduce"). Engines say what
// happened in words alone, so words decide between TimeoutError and PeerError; anything else that an engine said is an
// InvalidArgument when the call itself threw it (`at_call`), else a PeerError. Ours, and exceptions that no engine
// throws (Python's), stay as they are.
std::exception_ptr error_from_c10d(const std::string& what, const std::exception_ptr& error, bool at_call);

// Whether the group is at its end after `error`. Only an engine of ours finds a mismatch, and knows by itself whether
// it ends the group.
bool ends_the_group(const std::exception_ptr& error);

}  // namespace gradwire::internal

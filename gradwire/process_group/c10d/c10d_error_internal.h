// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The exceptions of libtorch's engines as gradwire's errors.
#pragma once

#include <exception>
#include <functional>
#include <string>

namespace gradwire::internal {

// Returns `error` as one of gradwire's errors, whose text begins with `what` ("rank 0 of group 'default' (gloo):
// all_reduce"). An engine describes a failure only by text, so the text decides between TimeoutError and PeerError. Any
// other error of an engine is an InvalidArgument when the call itself threw it (`at_call`), else a PeerError. Errors of
// gradwire, and exceptions that no engine throws (Python's), do not change.
std::exception_ptr error_from_c10d(const std::string& what, const std::exception_ptr& error, bool at_call);

// Whether the group is at its end after `error`. A MismatchError comes only from an engine of gradwire's, which itself
// knows whether it is at its end.
bool ends_the_group(const std::exception_ptr& error);

}  // namespace gradwire::internal

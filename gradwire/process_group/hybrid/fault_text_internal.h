// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The ranks at fault, in the reason with which a hybrid group aborts the groups below: all that every kind of group
// passes on to other ranks. Thread-safe.
#pragma once

#include <exception>
#include <optional>
#include <string>
#include <vector>

namespace gradwire::internal {

// The ranks that the first rank to fail named, in the numbers of the hybrid group, which may be none; nothing where
// `text` is of no such reason.
std::optional<std::vector<int>> culprits_in(const std::string& text);

// The text of an error without the lists of ranks at fault, which are for hybrid groups.
std::string readable(std::string text);

// What `error` says of itself.
std::string message_of(const std::exception_ptr& error);

// For an error of a group below that ended because a hybrid group did: a PeerError that names the ranks at fault, or
// null where that is `own_rank`, or where `error` is about something else. A duplicate's groups end with those that
// they are duplicates of, on every rank, so the error may also be an AbortedError.
std::exception_ptr end_by_others(const std::exception_ptr& error, int own_rank);

// Whether `error` is a PeerError or a TimeoutError.
bool is_about_peers(const std::exception_ptr& error);

// The reason with which groups below are aborted because of `error`: a failure of this rank's own, or one of others.
// Where those are not known, nobody is named.
std::string reason_with_culprits(const std::exception_ptr& error, int own_rank, const std::string& reason);

}  // namespace gradwire::internal

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Errors of a group inside another group, in the numbers of the outer one.
#pragma once

#include <exception>
#include <span>
#include <vector>

namespace gradwire::internal {

// Returns `error` with peers() as ranks of the outer group: rank r inside is members[r] outside. The text of a
// PeerError or TimeoutError that names ranks then begins with the outer ranks, and says who the inner ones are; that of
// a MismatchError only the latter. Other errors do not change, nor do ranks that `members` does not have.
std::exception_ptr in_outer_ranks(const std::exception_ptr& error, std::span<const int> members);

// The other way round: returns `error` of the outer group with peers() as ranks of the inner group. Ranks that are no
// members are left out; null where none is left of ranks that `error` names.
std::exception_ptr in_inner_ranks(const std::exception_ptr& error, std::span<const int> members);

// The ranks that a PeerError or TimeoutError names; empty for any other error.
std::vector<int> peers_of(const std::exception_ptr& error);

}  // namespace gradwire::internal

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The check that all ranks run the same communication hook.
#pragma once

#include <exception>

#include "gradwire/ddp/comm_hook.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// Compares CommHook::identity() of all ranks. Collective over `group`. When the identities differ, throws a
// MismatchError on all ranks that names the ranks and their hooks. A null `hook`: this rank has no hook any more. The
// check is needed because different hooks may send messages of the same size, which no group can tell apart. Uses
// all_gather only; equal identities cost eight bytes for each rank.
void require_same_hooks(ProcessGroup& group, const CommHook* hook);

// Returns `error`, an error from the reduction of a bucket on `rank`. The message of a MismatchError names calls only,
// so a MismatchError is returned with the name of the hook that made the calls (`hook` null: no hook).
std::exception_ptr with_hook_named(const std::exception_ptr& error, const CommHook* hook, int rank);

// Runs `body`, and passes its errors through with_hook_named().
template <class Body>
void naming_hook(const CommHook* hook, int rank, const Body& body) {
  try {
    body();
  } catch (...) {
    std::rethrow_exception(with_hook_named(std::current_exception(), hook, rank));
  }
}

}  // namespace gradwire::internal

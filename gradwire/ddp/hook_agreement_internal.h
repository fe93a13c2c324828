// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Whether the ranks run the same communication hook.
#pragma once

#include <exception>

#include "gradwire/ddp/comm_hook.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// Collective over `group`: compares CommHook::identity() of all ranks. Throws MismatchError on all ranks where it
// differs, which names the ranks and their hooks. Null: this rank has no hook any more. Hooks that differ may send
// messages of one size, which no group can tell apart. Uses all_gather only: eight bytes a rank where all is well.
void require_same_hooks(ProcessGroup& group, const CommHook* hook);

// `error`, which came out of the reduction of a bucket on `rank`. A MismatchError, in which a group tells of calls
// alone, is told with the hook (null: none) that made them.
std::exception_ptr with_hook_named(const std::exception_ptr& error, const CommHook* hook, int rank);

// Runs `body` and throws its errors told so.
template <class Body>
void naming_hook(const CommHook* hook, int rank, const Body& body) {
  try {
    body();
  } catch (...) {
    std::rethrow_exception(with_hook_named(std::current_exception(), hook, rank));
  }
}

}  // namespace gradwire::internal

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/call_guard_internal.h"

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/hook_scope_internal.h"

namespace gradwire::internal {

void CallGuard::require_between_passes(const char* what) const {
  if (!in_pass_) return;
  throw InvalidArgument(concat(what, " was called within a backward pass on rank ", rank_,
                               " (by a hook, say), or after one that did not reach all parameters; call it between "
                               "iterations, before the forward."));
}

bool CallGuard::in_hook() const noexcept { return HookScope::is_inside(owner_); }

void CallGuard::require_outside_hook(const char* what) const {
  if (!in_hook()) return;
  throw InvalidArgument(concat(what, " of a DistributedDataParallel was called in its own communication hook on rank ",
                               rank_, "; call it after the backward pass, which waits for the hook."));
}

}  // namespace gradwire::internal

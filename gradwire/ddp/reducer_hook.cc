// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The Reducer's hook: registration and replacement.
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/reducer_internal.h"

namespace gradwire::internal {
namespace {

void require_named_groups(const CommHook& hook) {
  for (const auto& named : hook.traits().groups) {
    if (named == nullptr) throw InvalidArgument(concat("The hook '", hook.traits().name, "' names a null group."));
  }
}

}  // namespace

// Called before the lock is taken: a pass may hold the lock while hooks run.
void Reducer::require_between_passes(const char* what) const {
  if (!reducing_) return;
  throw InvalidArgument(concat(what, " was called within a backward pass on rank ", group_->rank(),
                               " (by a hook, say), or after one that did not reach all parameters; call it between "
                               "iterations, before the forward."));
}

void Reducer::set_hook(std::shared_ptr<CommHook> hook) {
  require_between_passes("register_comm_hook()");
  MutexLock lock(mutex_);
  if (hook == nullptr) throw InvalidArgument("register_comm_hook() got a null hook.");
  if (hook_ != nullptr) {
    throw InvalidArgument(concat("register_comm_hook(): this DistributedDataParallel has the hook '",
                                 hook_->traits().name,
                                 "' already; it takes one, once. replace_comm_hook() changes it."));
  }
  if (iteration_.number() > 0 || iteration_.any_launched()) {
    throw InvalidArgument(
        "register_comm_hook() was called after the first synchronized backward pass; register the hook before "
        "training.");
  }
  require_named_groups(*hook);
  hook_since_ = iteration_.number();
  use_hook(std::move(hook));
}

void Reducer::replace_hook(std::shared_ptr<CommHook> hook) {
  require_between_passes("replace_comm_hook()");
  MutexLock lock(mutex_);
  if (hook != nullptr) require_named_groups(*hook);
  replacement_ = std::move(hook);
}

std::shared_ptr<CommHook> Reducer::hook() const {
  MutexLock lock(mutex_);
  return replacement_.value_or(hook_);
}

void Reducer::adopt_replacement() {
  if (!replacement_) return;
  ++hooks_before_;
  hook_since_ = iteration_.number();
  use_hook(*std::exchange(replacement_, std::nullopt));
}

void Reducer::use_hook(std::shared_ptr<CommHook> hook) {
  hook_ = std::move(hook);
  if (hook_ != nullptr && control_ != nullptr) launcher_.duplicate_groups_of(*hook_);
  report_.set_hook(hook_ != nullptr ? hook_->traits().name : std::string(), launcher_.lanes_for(hook_.get()));
}

}  // namespace gradwire::internal

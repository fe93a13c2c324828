// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/hook_slot_internal.h"

#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::internal {
namespace {

void require_named_groups(const CommHook& hook) {
  for (const auto& named : hook.traits().groups) {
    if (named == nullptr) throw InvalidArgument(concat("The hook '", hook.traits().name, "' names a null group."));
  }
}

}  // namespace

void HookSlot::set_first(std::shared_ptr<CommHook> hook, const Iteration& iteration) {
  if (hook == nullptr) throw InvalidArgument("register_comm_hook() got a null hook.");
  const CommHook* const has = hook_ == nullptr && replacement_ ? replacement_->get() : hook_.get();
  if (has != nullptr) {
    throw InvalidArgument(concat("register_comm_hook(): this DistributedDataParallel has the hook '",
                                 has->traits().name, "' already; it takes one, once. replace_comm_hook() changes it."));
  }
  if (iteration.number() > 0 || iteration.any_launched()) {
    throw InvalidArgument(
        "register_comm_hook() was called after the first synchronized backward pass; register the hook before "
        "training.");
  }
  require_named_groups(*hook);
  replacement_.reset();
  hook_ = std::move(hook);
  since_ = iteration.number();
}

void HookSlot::unset() noexcept {
  hook_.reset();
  since_.reset();
}

void HookSlot::replace_with(std::shared_ptr<CommHook> hook) {
  if (hook != nullptr) require_named_groups(*hook);
  replacement_ = std::move(hook);
}

bool HookSlot::adopt(std::uint32_t iteration) {
  if (!replacement_) return false;
  hook_ = *std::exchange(replacement_, std::nullopt);
  ++hooks_before_;
  since_ = iteration;
  return true;
}

}  // namespace gradwire::internal

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/hook_scope_internal.h"

namespace gradwire::internal {
namespace {

thread_local const HookScope* innermost = nullptr;

}  // namespace

HookScope::HookScope(const void* owner) noexcept : owner_(owner), outer_(innermost) { innermost = this; }

HookScope::~HookScope() { innermost = outer_; }

bool HookScope::is_inside(const void* owner) noexcept {
  for (const HookScope* scope = innermost; scope != nullptr; scope = scope->outer_) {
    if (scope->owner_ == owner) return true;
  }
  return false;
}

}  // namespace gradwire::internal

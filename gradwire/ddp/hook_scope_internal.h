// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Which DDP object's hook runs on this thread.
#pragma once

namespace gradwire::internal {

// While it lives, this thread runs a communication hook of `owner`, which cannot begin anything new then: it waits for
// the hook. Scopes nest; lives on the stack of its thread.
class HookScope final {
 public:
  explicit HookScope(const void* owner) noexcept;
  ~HookScope();
  HookScope(const HookScope&) = delete;
  HookScope& operator=(const HookScope&) = delete;

  // Whether a hook of `owner` runs on this thread.
  static bool is_inside(const void* owner) noexcept;

 private:
  const void* const owner_;
  const HookScope* const outer_;
};

}  // namespace gradwire::internal

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The DDP object whose hook runs on this thread.
#pragma once

namespace gradwire::internal {

// While a HookScope lives, this thread runs a communication hook of `owner`. `owner` waits for the hook, so the hook
// must not start anything new on `owner`. Scopes nest. A scope lives on the stack of its thread.
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

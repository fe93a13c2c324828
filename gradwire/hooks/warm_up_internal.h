// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Hooks that average plainly in their first iterations.
#pragma once

#include <cstdint>

#include "gradwire/ddp/comm_hook.h"

namespace gradwire::internal {

// A hook that may have a warm-up, or that wraps such a hook.
class HasWarmUp {
 public:
  virtual ~HasWarmUp() = default;
  // The number of iterations that the hook begins with in which it averages plainly. Does not change.
  virtual std::int64_t warm_up() const = 0;
  // From its next iteration on the hook does what it does after its warm-up. Call it between iterations, on all ranks.
  virtual void end_warm_up() = 0;
};

// The warm-up of `hook`; 0 for a hook that has none.
inline std::int64_t warm_up_of(const CommHook& hook) {
  const auto* const warms_up = dynamic_cast<const HasWarmUp*>(&hook);
  return warms_up != nullptr ? warms_up->warm_up() : 0;
}

// Ends the warm-up of `hook`. Changes nothing for a hook that has none.
inline void end_warm_up_of(CommHook& hook) {
  if (auto* const warms_up = dynamic_cast<HasWarmUp*>(&hook)) warms_up->end_warm_up();
}

}  // namespace gradwire::internal

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The memories of hooks when the ranks change.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "gradwire/base/strings.h"
#include "gradwire/ddp/comm_hook.h"
#include "gradwire/ddp/hook_state.h"

namespace gradwire::internal {

// Before the name of a parameter: the key of its estimate in the local part of EF21's state.
inline constexpr std::string_view kEstimatePrefix = "local/estimate/";

// EF21 keeps an estimate on each rank, and the mean of all ranks' estimates. The estimate of a rank that has died is in
// the mean for good, so the others' estimates no longer have that mean. Without an estimate, a rank takes the mean for
// its own. Removes the estimates from `local`, and returns whether there was any.
inline bool drop_estimates(const HookState& shared, HookState& local) {
  const std::string aggregate = "aggregate/";
  std::size_t dropped = 0;
  for (const auto& [key, value] : shared) {
    if (key.starts_with(aggregate)) dropped += local.erase(concat(kEstimatePrefix, key.substr(aggregate.size())));
  }
  return dropped > 0;
}

// The state of a hook, on each rank of a new world, from the local parts of the ranks that had a memory (has_memory())
// in the old one. Without such a rank, the hook goes on with the shared part alone.
inline HookState state_for_other_ranks(const HookState& shared, const std::vector<HookState>& parts) {
  if (parts.empty()) return shared;
  HookState local = average_local(parts);
  drop_estimates(shared, local);
  return join_parts(shared, local);
}

}  // namespace gradwire::internal

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A wrapper that runs a hook only in some iterations and for some buckets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "gradwire/ddp/comm_hook.h"

namespace gradwire {

struct PolicyOptions {
  // The first iteration in which the inner hook runs; plain averaging before. Iterations count from 0. A run that loads
  // the hook's state continues the count.
  std::uint32_t warm_up = 0;
  // Buckets with fewer bytes are averaged plainly: compressing such a bucket costs more than it saves.
  std::size_t min_bytes = 0;
};

// Returns a hook that runs `inner` where the options allow it, and allreduce_hook() over `group` elsewhere (null: over
// the bucket's group). Give it the group that `inner` has. The options must be the same on all ranks. The hook has the
// traits and the state of `inner`. With a warm-up the state also holds "policy/iteration", the number of the next
// iteration. Throws InvalidArgument for a null hook.
std::shared_ptr<CommHook> make_policy_hook(std::shared_ptr<CommHook> inner, const PolicyOptions& options,
                                           std::shared_ptr<ProcessGroup> group = nullptr);

}  // namespace gradwire

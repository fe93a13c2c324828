// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Rules about when a hook runs at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "gradwire/ddp/comm_hook.h"

namespace gradwire {

struct PolicyOptions {
  // Plain averaging in iterations before this one. They count from 0, over checkpoints: by bucket.iteration(), and what
  // came before a state that was loaded.
  std::uint32_t warm_up = 0;
  // Buckets of fewer bytes are averaged plainly: what compressing them saves is less than it costs.
  std::size_t min_bytes = 0;
};

// `inner` where the rules let it run, else allreduce_hook(). Must be the same on all ranks. Traits and memory are the
// inner hook's; with a warm-up the state to save has "policy/iteration" too, the number of the next one. Throws
// InvalidArgument for a null hook.
std::shared_ptr<CommHook> make_policy_hook(std::shared_ptr<CommHook> inner, const PolicyOptions& options);

}  // namespace gradwire

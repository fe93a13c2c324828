// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A ZeroRedundancyOptimizer's steps inside DDP's backward pass.
//
//   auto optimizer = std::make_shared<gradwire::ZeroRedundancyOptimizer>(
//       ddp.parameters(), gradwire::optimizer_factory<torch::optim::Adam>(torch::optim::AdamOptions(1e-3)),
//       gradwire::ZeroOptions{.overlap_with_ddp = true});
//   ddp.register_comm_hook(gradwire::make_zero_hook(gradwire::make_allreduce_hook(), optimizer, ddp.core()));
//   for (...) {
//     ddp.zero_grad();
//     loss_of(ddp(x)).backward();      // gradients are averaged and, from the third iteration on, parameters have
//     stepped
//   }
#pragma once

#include <memory>

#include "gradwire/ddp/comm_hook.h"
#include "gradwire/ddp/distributed_data_parallel.h"
#include "gradwire/optim/zero_redundancy_optimizer.h"

namespace gradwire {

// Must be the same on all ranks.
struct ZeroHookOptions {
  // True: a bucket's parameters step and travel as soon as its gradients are averaged (PyTorch's
  // hook_with_zero_step_interleaved). False: when those of the last bucket are (hook_with_zero_step).
  bool interleaved = true;
  // False: each bucket has one owner, bucket k rank k mod N. True: parameters have the owners that they have without
  // overlap, and a bucket as many as its parameters do, so that ranks remember 1/N also where buckets are few.
  bool shard_buckets = false;
};

// A hook for `ddp` that runs `inner`, then the steps of `zero`. Buckets are DDP's, which are not known before its
// second iteration, so the first two iterations (three with static_graph) make no update, as in PyTorch: their
// gradients are averaged, and that is all. .grad holds the averages at the end of backward. What hooks that step in the
// backward pass mean for users is said in hooks/optimizer_overlap_hooks.h.
//
// A bucket's parameters go from their owners to all ranks: with `inner`'s bytes a rank sends, for the elements that it
// owns, what a broadcast of them sends. The state to save is the optimizer's (consolidate_state()) and inner's.
//
// Throws InvalidArgument for a null argument, an optimizer without overlap_with_ddp, one of another group than `ddp`'s,
// one that has a hook already; UnsupportedError for DDP's mixed precision, whose parameters are not of their own type
// in the backward pass; InvalidArgument in the first iteration with updates, when `ddp` and the optimizer do not have
// the same parameters; and later when buckets change.
std::shared_ptr<CommHook> make_zero_hook(std::shared_ptr<CommHook> inner, std::shared_ptr<ZeroRedundancyOptimizer> zero,
                                         const DdpCore& ddp, ZeroHookOptions options = {});

}  // namespace gradwire

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A hook that runs the steps of a ZeroRedundancyOptimizer in DDP's backward pass.
//
//   auto optimizer = std::make_shared<gradwire::ZeroRedundancyOptimizer>(
//       ddp.parameters(), gradwire::optimizer_factory<torch::optim::Adam>(torch::optim::AdamOptions(1e-3)),
//       gradwire::ZeroOptions{.overlap_with_ddp = true});
//   ddp.register_comm_hook(gradwire::make_zero_hook(gradwire::make_allreduce_hook(), optimizer, ddp.core()));
//   for (...) {
//     ddp.zero_grad();
//     loss_of(ddp(x)).backward();      // averages gradients; from the third iteration on also steps parameters
//   }
#pragma once

#include <memory>

#include "gradwire/ddp/comm_hook.h"
#include "gradwire/ddp/distributed_data_parallel.h"
#include "gradwire/optim/zero_redundancy_optimizer.h"

namespace gradwire {

// The options must be the same on all ranks.
struct ZeroHookOptions {
  // True: the parameters of a bucket step, and are sent to all ranks, as soon as the bucket's gradients are averaged
  // (PyTorch's hook_with_zero_step_interleaved). False: this happens for all buckets when the last bucket's gradients
  // are averaged (PyTorch's hook_with_zero_step).
  bool interleaved = true;
  // False: each bucket has one owner: rank k mod N owns bucket k. True: each parameter has the owner that it has
  // without overlap_with_ddp, so a bucket may have several owners, and each rank keeps the optimizer state of 1/N of
  // the elements also where there are few buckets.
  bool shard_buckets = false;
};

// Returns a hook for `ddp` that runs `inner` on each bucket, and then the step of `zero` for the bucket's parameters.
// The caller registers the hook in `ddp`. Hook and caller share `inner` and `zero`. At the end of backward `.grad`
// holds the averages. Frozen parameters do not step; parameters that no rank used step with gradients of zeros.
// hooks/optimizer_overlap_hooks.h states what users of a hook that steps in the backward pass have
// to know.
//
// DDP's buckets are final only in the second iteration. So, as in PyTorch, the first two iterations (with static_graph:
// three) average gradients and do not step. An optimizer whose state was loaded steps from the first iteration on when
// the order of the buckets was loaded too (a checkpoint's restore() does that, or DdpCore::set_bucket_order()), else
// from the second one on, with a warning. The first step of a loaded state follows all buckets of its iteration.
//
// The owners of a bucket's parameters broadcast them to all ranks. A rank sends the bytes of `inner`, and the bytes of
// a broadcast of the elements that it owns. A checkpoint needs the optimizer's state
// (ZeroRedundancyOptimizer::consolidate_state()) and the state of `inner`.
//
// Throws InvalidArgument for a null argument, an optimizer without overlap_with_ddp, an optimizer over another group
// than that of `ddp`, and an optimizer that has a hook; UnsupportedError with DDP's mixed precision, where parameters
// do not have their own dtype in the backward pass. The backward pass throws InvalidArgument in the last iteration that
// does not step when `ddp` and `zero` have different parameters, and later when the buckets change.
std::shared_ptr<CommHook> make_zero_hook(std::shared_ptr<CommHook> inner, std::shared_ptr<ZeroRedundancyOptimizer> zero,
                                         const DdpCore& ddp, ZeroHookOptions options = {});

}  // namespace gradwire

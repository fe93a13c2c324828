// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A hook that averages a bucket and steps its parameters in one pass over memory, each rank 1/N of the elements.
//
//   auto optimizer = std::make_shared<gradwire::ZeroRedundancyOptimizer>(
//       ddp.parameters(), gradwire::optimizer_factory<torch::optim::Adam>(torch::optim::AdamOptions(1e-3)),
//       gradwire::ZeroOptions{.overlap_with_ddp = true});
//   ddp.register_comm_hook(gradwire::make_fused_zero_hook(optimizer, ddp.core()));
//   for (...) {
//     optimizer->zero_grad();
//     loss_of(ddp(x)).backward();      // from the third iteration on also steps parameters
//   }
#pragma once

#include <cstdint>
#include <memory>

#include "gradwire/ddp/comm_hook.h"
#include "gradwire/ddp/distributed_data_parallel.h"
#include "gradwire/optim/zero_redundancy_optimizer.h"

namespace gradwire {

// The options must be the same on all ranks.
struct FusedZeroOptions {
  // True: the optimizer is of a class that this hook does not know, and treats each element by itself. SGD, Adam,
  // AdamW, Adagrad and RMSprop of torch::optim are known to.
  bool element_wise = false;
  // The number of elements that a rank sums, steps and sends before it goes to the next: what the processor's cache
  // holds with their gradients and the optimizer's state of them. At least 1.
  std::int64_t chunk_numel = std::int64_t{1} << 16;
};

// Returns a hook for `ddp` that runs the steps of `zero` in the backward pass. The caller registers the hook in `ddp`.
// Hook and caller share `zero`.
//
// Each rank owns 1/N of the elements of each bucket. When the bucket is ready on all ranks, a rank averages the
// gradients of its elements, steps them while they are in the cache, and gives the new values to all ranks. Where ranks
// share memory (the backends shm and threads), a rank reads the gradients and writes the parameters of the others
// directly, and the hook makes two barriers a bucket and nothing else. Over other groups, and on devices, it makes a
// reduce_scatter and an all_gather: a rank sends the bytes of these two. A group without reduce_scatter makes an
// all_reduce instead.
//
// The parameters have the same bits on all ranks, and those that they have with DDP's own average (no hook) and the
// plain optimizer. float16 and bfloat16 parameters may differ from the latter's by a rounding: libtorch adds their
// elements otherwise at the end of a tensor than in its middle, and a part of a tensor has other ends. The state of
// `zero` is consolidated, saved and loaded as always, also from and to a ZeroRedundancyOptimizer without this hook.
//
// What differs from make_zero_hook():
// - When an iteration has stepped, `.grad` holds this rank's own gradients, not the averages. The first two iterations
//   (with static_graph: three) average gradients and do not step, as with make_zero_hook(), which also says when the
//   steps begin after a state was loaded.
// - The parameters move into flat memory with their values, one buffer a bucket; a tensor that shared memory with a
//   parameter before does not follow.
// - The optimizer steps parts of parameters, so it must treat each element by itself. owner_of() is refused.
// - There is no inner hook: gradients are not compressed.
// - With find_unused_parameters, a parameter that no rank used is stepped with a gradient of zeros; a parameter that
//   needs no gradient (requires_grad(false)) is not stepped.
// - After an error other ranks may still be writing to this rank's parameters where ranks share memory: load a
//   checkpoint into new parameters, not into these.
// hooks/optimizer_overlap_hooks.h states what users of a hook that steps in the backward pass have to know.
//
// Throws InvalidArgument for a null argument, an optimizer without overlap_with_ddp, an optimizer over another group
// than that of `ddp`, an optimizer that has a hook, a class of optimizer that is not known to treat each element by
// itself, and options out of range; UnsupportedError with DDP's mixed precision. The backward pass throws
// InvalidArgument in the last iteration that does not step when `ddp` and `zero` have different parameters, and later
// when the buckets change or a parameter has got another dtype, device or number of elements.
std::shared_ptr<CommHook> make_fused_zero_hook(std::shared_ptr<ZeroRedundancyOptimizer> zero, const DdpCore& ddp,
                                               FusedZeroOptions options = {});

}  // namespace gradwire

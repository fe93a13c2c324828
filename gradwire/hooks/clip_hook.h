// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Clipping gradients by their global norm.
//
// The norm of the averaged gradients is known when the last bucket is reduced, and no earlier. So clipping comes after
// backward and before the optimizer's step, on every rank for itself, from the same bits to the same bits:
//
//   loss.backward();
//   gradwire::clip_grad_norm(ddp.parameters(), 1.0);
//   optimizer.step();
//
// Clipping before the reduction (each rank's own gradients, to bound what one rank contributes) needs the norm over all
// buckets before the first one is sent. A hook cannot wait for the last bucket: buckets run one after another on their
// lane, and a hook that held the first one back would hold up the lane that the last one needs. So there is no such
// hook; overlap of backward and communication ends whoever does it. In this order it is right:
//
//   { auto local = ddp.no_sync(); loss_of(ddp(x)).backward(); }       // gradients of this rank alone
//   gradwire::clip_grad_norm(ddp.parameters(), 1.0);                  // of this rank alone
//   gradwire::reduce_gradients(net->named_parameters().pairs(), hook, group);
//   optimizer.step();
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/ddp/comm_hook.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire {

enum class NormKind {
  kL2,   // the root of the sum of squares
  kMax,  // the largest magnitude
};

// The norm of all gradients together, summed in float64 in a fixed order: ranks with the same gradients get the same
// bits, with however many compute threads. Parameters without gradient are skipped. Inf or NaN where a gradient has
// one.
double grad_norm(const std::vector<at::Tensor>& parameters, NormKind kind = NormKind::kL2);

// Multiplies all gradients by max_norm / (norm + 1e-6) where that is below 1; returns the norm before. With an infinite
// norm or a NaN the gradients stay as they are, for who looks for one and skips the step (PyTorch's makes zeros of the
// finite ones). Local: no communication. Throws InvalidArgument unless max_norm > 0.
double clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm, NormKind kind = NormKind::kL2);

// Averages the gradients of `parameters` (names and tensors, as named_parameters().pairs() has them; those without
// gradient are skipped) over `group` (null: the default group) through `hook` (null: allreduce_hook), in one bucket for
// each dtype and device, and writes them back. Collective: all ranks have gradients for the same parameters. On the
// calling thread, and done when it returns. `iteration` is what the hook sees as GradBucket::iteration(); hooks with a
// memory want it to count. Throws InvalidArgument for sparse gradients and for a result that does not fit, and what the
// hook and the group throw.
void reduce_gradients(const std::vector<std::pair<std::string, at::Tensor>>& parameters,
                      const std::shared_ptr<CommHook>& hook, const std::shared_ptr<ProcessGroup>& group,
                      std::uint32_t iteration = 0);

}  // namespace gradwire

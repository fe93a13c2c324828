// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Clipping of gradients by their global norm.
//
// The norm of the averaged gradients is known only when the last bucket is reduced. So each rank clips after the
// backward pass and before the optimizer's step. No communication is needed: all ranks start from the same bits, and
// get the same bits.
//
//   loss.backward();
//   gradwire::clip_grad_norm(ddp.parameters(), 1.0);
//   optimizer.step();
//
// Clipping before the reduction bounds the contribution of one rank. It needs the norm over all buckets before the
// first bucket is sent, so communication cannot overlap the backward pass. No hook can do this: the buckets of a lane
// run one after another, and a hook that waits in the first bucket for the last one would block the lane that the last
// bucket needs. Use reduce_gradients() instead:
//
//   { auto local = ddp.no_sync(); loss_of(ddp(x)).backward(); }       // the gradients of this rank alone
//   gradwire::clip_grad_norm(ddp.parameters(), 1.0);                  // clips the gradients of this rank alone
//   gradwire::reduce_gradients(net->named_parameters().pairs(), hook, group);
//   optimizer.step();
//
// No function here is thread-safe for the same parameters.
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

enum class NormKind {  // how clipping measures the gradients
  kL2,                 // the root of the sum of squares
  kMax,                // the largest magnitude
};

// Returns the norm of all gradients together. The sum is taken in float64 in a fixed order (elements of a sparse
// gradient that are listed several times are first added in its own dtype), so ranks with the same gradients get the
// same bits, with any number of compute threads. Gradients may be dense or sparse, real or complex. Parameters without
// a gradient are skipped; one that is listed twice counts once. An Inf or NaN in a gradient makes the norm Inf or NaN.
double grad_norm(const std::vector<at::Tensor>& parameters, NormKind kind = NormKind::kL2);

// Multiplies all gradients by max_norm / (norm + 1e-6) if that factor is below 1. Returns the norm before. When the
// norm is Inf or NaN, the gradients stay unchanged, so the program can find the Inf or NaN and skip the step. (PyTorch
// turns finite gradients into zeros when the norm is Inf.) Local: no communication. Throws InvalidArgument unless
// max_norm > 0.
double clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm, NormKind kind = NormKind::kL2);

// Averages the gradients of `parameters` over the ranks, and writes the averages into .grad. `parameters` are names and
// tensors, as named_parameters().pairs() returns them; parameters without a gradient are skipped, and one that has
// several names is averaged once, under the first. `group`: null for the default group. `hook`: null for
// allreduce_hook(). There is one bucket for each dtype and device.
//
// Collective: all ranks must have gradients for the same parameters. The call runs the hook on the calling thread, and
// returns when all averages are written. `iteration` becomes GradBucket::iteration(): count it up with each call, for
// hooks with state. Throws InvalidArgument for sparse gradients and for a result that does not fit the bucket, and what
// the hook and the group throw; some gradients may then hold averages and others not.
void reduce_gradients(const std::vector<std::pair<std::string, at::Tensor>>& parameters,
                      const std::shared_ptr<CommHook>& hook, const std::shared_ptr<ProcessGroup>& group,
                      std::uint32_t iteration = 0);

}  // namespace gradwire

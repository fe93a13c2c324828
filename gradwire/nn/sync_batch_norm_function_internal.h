// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The arithmetic of SyncBatchNorm and its gradient.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// The tensors of a layer. `weight` and `bias` may be undefined; so may be `running_mean` and `running_var`, together.
struct BatchNormTensors {
  at::Tensor weight, bias, running_mean, running_var;
};

// The input normalized by the statistics of all ranks; differentiable. Moves the running statistics towards those of
// the batch, by `momentum` of the way. Collective; throws InvalidArgument on all ranks for a batch of
// one element a channel, and where ranks do not agree whether there will be a backward pass; then nothing has moved.
at::Tensor sync_batch_norm(const at::Tensor& input, const BatchNormTensors& layer, double momentum, double eps,
                           const std::shared_ptr<ProcessGroup>& group);

// Throws the InvalidArgument of a batch with one element a channel. `group` null: outside of one.
[[noreturn]] void refuse_one_value(const ProcessGroup* group);

}  // namespace gradwire::internal

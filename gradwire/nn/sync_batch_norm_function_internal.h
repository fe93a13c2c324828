// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The arithmetic of SyncBatchNorm and its gradient.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>

#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// The tensors of a layer. `weight`, `bias` and `num_batches_tracked` may be undefined; so may be `running_mean` and
// `running_var`, together.
struct BatchNormTensors {
  at::Tensor weight, bias, running_mean, running_var, num_batches_tracked;
};

// The part of the way that the running statistics move towards those of the next batch. Counts that batch in
// `num_batches_tracked`, where that is defined. `momentum`: that of the layer; nullopt: the statistics become the mean
// of all batches.
double count_batch(const at::Tensor& num_batches_tracked, std::optional<double> momentum);

// The input normalized by the statistics of all ranks; differentiable. Moves the running statistics towards those of
// the batch, and counts the batch, as count_batch() says; not for a batch without elements. Collective; throws
// InvalidArgument on all ranks for a batch of one element a channel, and where ranks do not agree whether there will be
// a backward pass; then nothing has moved.
at::Tensor sync_batch_norm(const at::Tensor& input, const BatchNormTensors& layer, std::optional<double> momentum,
                           double eps, const std::shared_ptr<ProcessGroup>& group);

// Throws the InvalidArgument of a batch with one element a channel. `group` null: outside of one.
[[noreturn]] void refuse_one_value(const ProcessGroup* group);

}  // namespace gradwire::internal

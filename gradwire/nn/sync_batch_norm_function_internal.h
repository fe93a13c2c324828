// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The arithmetic of SyncBatchNorm and its gradient.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// Of all ranks' elements of each channel.
struct BatchStatistics {
  at::Tensor mean, variance;    // [C] of float64; variance: the biased one
  double count = 0;             // elements a channel
  bool needs_gradient = false;  // some rank's input needs a gradient
};

// Throws InvalidArgument for an input with fewer than two dimensions, with another number of channels, or of a type
// that is not floating.
void require_fitting(const at::Tensor& input, std::int64_t channels);

// Collective. Throws InvalidArgument on all ranks for a count of one, and where ranks do not agree whether there will
// be a backward pass.
BatchStatistics gather_statistics(const at::Tensor& input, const std::shared_ptr<ProcessGroup>& group);

// Moves the running statistics towards `statistics`, by `momentum` of the way. Nothing where they are not tracked
// (undefined), or where the batch has no elements.
void track(const BatchStatistics& statistics, const at::Tensor& running_mean, const at::Tensor& running_var,
           double momentum);

// The normalized input; differentiable. `weight` and `bias` may be undefined.
at::Tensor normalize(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                     const BatchStatistics& statistics, double eps, const std::shared_ptr<ProcessGroup>& group);

// Throws the InvalidArgument of a batch with one element a channel. `group` null: outside of one.
[[noreturn]] void refuse_one_value(const ProcessGroup* group);

}  // namespace gradwire::internal

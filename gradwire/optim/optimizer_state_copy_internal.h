// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Copies of what an optimizer remembers of one parameter.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <memory>

namespace gradwire::internal {

using OptimizerEntry = std::unique_ptr<torch::optim::OptimizerParamState>;

// `kept` becomes a copy of `state`, the state of `parameter`, that shares no memory with it. Writes into the tensors of
// `kept` where they have the right sizes, so that keeping the same state again allocates nothing. `kept` may be null.
void copy_entry(const torch::optim::OptimizerParamState& state, const at::Tensor& parameter, OptimizerEntry& kept);

}  // namespace gradwire::internal

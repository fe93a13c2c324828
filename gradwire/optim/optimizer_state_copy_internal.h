// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Copies of what an optimizer remembers of one parameter, and whether what was loaded fits the parameters.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <string_view>

namespace gradwire::internal {

using OptimizerEntry = std::unique_ptr<torch::optim::OptimizerParamState>;

// `kept` becomes a copy of `state`, the state of `parameter`, that shares no memory with it. Writes into the tensors of
// `kept` where they have the right sizes, so that keeping the same state again allocates nothing. `kept` may be null.
void copy_entry(const torch::optim::OptimizerParamState& state, const at::Tensor& parameter, OptimizerEntry& kept);

// Throws InvalidArgument, after the name `who`, when `loaded` remembers tensors of other sizes than its parameters
// have: its state was saved for another model. libtorch loads such a state without a word. Looks into the states of
// libtorch's own optimizers; other classes pass.
void require_state_of_sizes(torch::optim::Optimizer& loaded, std::string_view who);

}  // namespace gradwire::internal

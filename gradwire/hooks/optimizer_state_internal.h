// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The state that an optimizer of libtorch keeps of one parameter, in parts: tensors and numbers under the names under
// which the optimizer serializes them (Adam: "step", "exp_avg", "exp_avg_sq").
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <torch/optim/optimizer.h>

#include <map>
#include <string>

namespace gradwire::internal {

using StateParts = std::map<std::string, c10::IValue>;

// Returns copies of the parts, tensors on the CPU. Leaves out undefined tensors.
StateParts parts_of(const torch::optim::OptimizerParamState& state);

// Replaces `state` by copies of `parts`, with tensors on `device`: mostly the parameter's. Returns false when the class
// of `state` lacks one of the parts.
bool replace_parts(torch::optim::OptimizerParamState& state, const StateParts& parts, const c10::Device& device);

// Gives `parameter`, one of the optimizer's, the state that it had before the optimizer's first step: none, but for
// Adagrad, whose constructor makes the states, and whose step() needs them.
void restore_first_state(torch::optim::Optimizer& optimizer, const at::Tensor& parameter);

}  // namespace gradwire::internal

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Parameters of optimizers: checks, options, memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gradwire::internal {

using ParamGroups = std::vector<torch::optim::OptimizerParamGroup>;

// The parameters of all groups, in order.
std::vector<at::Tensor> parameters_in(const ParamGroups& groups);

// Throws InvalidArgument that begins with `who` unless there are parameters, and each is a dense leaf and there once.
void require_parameters(std::string_view who, const std::vector<at::Tensor>& parameters);

// The same options (a copy, none where there are none) for other parameters.
torch::optim::OptimizerParamGroup with_options_of(const torch::optim::OptimizerParamGroup& group,
                                                  std::vector<at::Tensor> parameters);

// The options of `to` become copies of those of `from`; as many groups.
void copy_options(const ParamGroups& from, ParamGroups& to);

// What `from` remembers of `parameters` moves to `to`, which forgets what it had of them.
void move_state(torch::optim::Optimizer& from, torch::optim::Optimizer& to, const std::vector<at::Tensor>& parameters);

// Moves the memory of parameters of one dtype and device into `buffer`, which is flat, of that dtype and device, and
// has packed_numel() elements; the parameters become views, with their values and, where they are dense, their strides.
// A parameter that is such a view already keeps its place. What shared memory with a parameter before does not follow
// it. Returns where in the buffer each parameter begins, in elements: at a multiple of 64 bytes, as in memory of its
// own, because some kernels of BLAS round differently elsewhere.
std::vector<std::int64_t> pack_into(const at::Tensor& buffer, const std::vector<at::Tensor>& parameters);
std::int64_t packed_numel(const std::vector<at::Tensor>& parameters);

// The same with parameters of several dtypes and devices: makes a buffer for each, and returns the buffers.
std::vector<at::Tensor> pack_parameters(const std::vector<at::Tensor>& parameters);

// Tells autograd that the values changed, so that it refuses to go backward through a graph that saved the old ones.
void mark_changed(const std::vector<at::Tensor>& parameters);

}  // namespace gradwire::internal

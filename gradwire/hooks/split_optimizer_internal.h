// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The state of an optimizer of libtorch as tensors, which need no copy to be sent, and a small archive for the rest.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/output-archive.h>

#include <string>
#include <string_view>
#include <vector>

namespace gradwire::internal {

// The tensors of a state of one of libtorch's own optimizers, defined or not; nothing for a class that is not known
// here.
std::vector<at::Tensor*> tensors_of(torch::optim::OptimizerParamState& state);

// Of the states of libtorch's own optimizers, the tensors that are large and contiguous, in the order of the
// parameters. They are the optimizer's own: not copies.
std::vector<at::Tensor> large_tensors_of(torch::optim::Optimizer& optimizer);

// Writes what the optimizer writes to `archive`, with tensors on the CPU. `optimizer` is changed meanwhile, and is as
// before afterwards. Throws what its save() throws.
void save_on_cpu(torch::optim::Optimizer& optimizer, torch::serialize::OutputArchive& archive);

// The same as bytes.
std::string bytes_of_optimizer(torch::optim::Optimizer& optimizer);

// Puts what bytes_of_optimizer() returned in the place of the whole state of `optimizer`, with tensors on the CPU: see
// move_to_parameters(). Throws what load() throws; the state from before stays then.
void load_optimizer(torch::optim::Optimizer& optimizer, std::string_view bytes);

// Moves the state of each parameter to the parameter's device, where it can step the parameter.
void move_to_parameters(torch::optim::Optimizer& optimizer);

struct SplitOptimizer {
  std::string archive = {};              // as the optimizer writes it, with a placeholder for each of the tensors
  std::vector<at::Tensor> tensors = {};  // large_tensors_of()
};

// `optimizer` is changed meanwhile, and is as before afterwards. Throws what its save() throws.
SplitOptimizer split_optimizer(torch::optim::Optimizer& optimizer);

// Puts what split_optimizer() returned in the place of the whole state of `optimizer`, on the devices of its
// parameters. `optimizer` keeps those of `tensors` that are there already. They have the dtypes and sizes of those of
// split_optimizer(), or as many bytes in one row. Throws what load() throws; InternalError when the tensors are not
// those of the archive. The state from before stays then.
void load_split(torch::optim::Optimizer& optimizer, std::string_view archive, const std::vector<at::Tensor>& tensors);

}  // namespace gradwire::internal

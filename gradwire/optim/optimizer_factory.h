// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A factory of torch::optim optimizers. ZeroRedundancyOptimizer and apply_optimizer_in_backward() take a factory and
// leave the arithmetic to the optimizers that the factory makes.
#pragma once

#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace gradwire {

// Makes an optimizer over the given parameter groups, with these groups in this order. A group may have no parameters.
// A group without options gets the optimizer's defaults. The caller owns the optimizer, and refuses null with
// InvalidArgument.
//
// A factory is called several times, for different parts of the parameters, one call at a time. The factories of all
// ranks make the same kind of optimizer with the same options. The optimizer must treat each parameter by itself and
// keep its memory of the parameters in state(): all optimizers of torch::optim but LBFGS do.
using OptimizerFactory =
    std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::optim::OptimizerParamGroup> groups)>;

// Returns a factory that makes a torch::optim `Optimizer` with the given default options:
//   optimizer_factory<torch::optim::Adam>(torch::optim::AdamOptions(1e-3))
template <class Optimizer, class Options>
OptimizerFactory optimizer_factory(Options defaults) {
  return [defaults = std::move(defaults)](std::vector<torch::optim::OptimizerParamGroup> groups) {
    return std::make_unique<Optimizer>(std::move(groups), defaults);
  };
}

}  // namespace gradwire

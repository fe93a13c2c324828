// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How the optimizers of this room get the torch::optim optimizers that do the arithmetic.
#pragma once

#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace gradwire {

// Makes an optimizer over parameter groups, any of which may have no parameters, or no options: then the optimizer's
// defaults hold. Called several times, for different parts of the parameters; one call at a time. All ranks' factories
// make the same kind of optimizer with the same options, one that treats each parameter by itself: all of torch::optim
// but LBFGS, and yours when it keeps what it remembers in state().
using OptimizerFactory =
    std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::optim::OptimizerParamGroup> groups)>;

//   optimizer_factory<torch::optim::Adam>(torch::optim::AdamOptions(1e-3))
template <class Optimizer, class Options>
OptimizerFactory optimizer_factory(Options defaults) {
  return [defaults = std::move(defaults)](std::vector<torch::optim::OptimizerParamGroup> groups) {
    return std::make_unique<Optimizer>(std::move(groups), defaults);
  };
}

}  // namespace gradwire

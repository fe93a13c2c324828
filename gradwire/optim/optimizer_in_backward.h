// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// One optimizer a parameter, which steps inside the backward pass as soon as the gradient is there, and frees it: the
// gradients of a model never exist all at once.
//
//   auto optimizers = gradwire::apply_optimizer_in_backward(
//       net->parameters(), gradwire::optimizer_factory<torch::optim::SGD>(torch::optim::SGDOptions(0.1)));
//   for (...) loss_of(net(x)).backward();      // parameters have stepped, gradients are undefined
//
// PyTorch's _apply_optimizer_in_backward.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <vector>

#include "gradwire/ddp/distributed_data_parallel.h"
#include "gradwire/optim/optimizer_factory.h"

namespace gradwire {

// What apply_optimizer_in_backward() returns. While it lives the parameters step in the backward pass (with DDP: as
// long as DDP lives, too).
class OptimizersInBackward {
 public:
  virtual ~OptimizersInBackward() = default;
  // In the order of the parameters: to set learning rates, between iterations, and to save and load what they remember.
  virtual const std::vector<std::unique_ptr<torch::optim::Optimizer>>& optimizers() const = 0;
};

// Without DDP. Each parameter has an optimizer of its own, of one parameter group. Throws InvalidArgument for no
// parameters, one twice, one that needs no gradient, or that has a hook on its gradient's accumulation (an optimizer in
// the backward already, or DDP's: use the overload for it); and in the backward pass when the module was given to DDP
// afterwards.
[[nodiscard]] std::shared_ptr<OptimizersInBackward> apply_optimizer_in_backward(
    const std::vector<at::Tensor>& parameters, const OptimizerFactory& factory);

// With DDP: parameters step with the averages when their bucket is reduced, on a lane; the gradients of `parameters`
// are undefined at the end of each synchronized backward pass, those of others hold the averages. Each bucket is summed
// and then divided, as in PyTorch. It is the one hook of `ddp`, registered here, so before training; collective as
// DdpCore::register_comm_hook(). What hooks that step in the backward pass mean for users is said in
// hooks/optimizer_overlap_hooks.h. Throws InvalidArgument as above, for parameters that are not `ddp`'s, and where
// there is a hook already.
[[nodiscard]] std::shared_ptr<OptimizersInBackward> apply_optimizer_in_backward(
    DdpCore& ddp, const std::vector<at::Tensor>& parameters, const OptimizerFactory& factory);

}  // namespace gradwire

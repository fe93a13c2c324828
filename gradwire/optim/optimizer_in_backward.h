// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// One optimizer for each parameter. The optimizer steps in the backward pass, as soon as the parameter's gradient is
// complete. Without DDP the gradient is freed after the step, so the gradients of a model never exist all at once.
//
//   auto optimizers = gradwire::apply_optimizer_in_backward(
//       net->parameters(), gradwire::optimizer_factory<torch::optim::SGD>(torch::optim::SGDOptions(0.1)));
//   for (...) loss_of(net(x)).backward();      // parameters have stepped, gradients are undefined
//
// Follows PyTorch's _apply_optimizer_in_backward.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <vector>

#include "gradwire/ddp/distributed_data_parallel.h"
#include "gradwire/optim/optimizer_factory.h"

namespace gradwire {

// The optimizers that apply_optimizer_in_backward() made. Without DDP, the parameters step in the backward pass while
// this object lives. With DDP, they do so while this object or the DDP object lives.
class OptimizersInBackward {
 public:
  virtual ~OptimizersInBackward() = default;
  // Returns one optimizer for each parameter, in the order of the parameters; this object owns them. Use them between
  // iterations only: to set learning rates, and to save and load their state.
  virtual const std::vector<std::unique_ptr<torch::optim::Optimizer>>& optimizers() const = 0;
};

// Without DDP: makes one optimizer for each parameter, with one parameter group. The optimizer steps at the end of its
// gradient's accumulation, on the thread of the backward pass, and the gradient becomes undefined. Does not
// communicate.
//
// Throws InvalidArgument, and changes nothing, for an empty list; a parameter that is undefined, sparse, no leaf,
// listed twice, or needs no gradient; a parameter with a hook on its gradient's accumulation (of an earlier call of
// this function, or of DDP: use the overload with `ddp`); a factory that is null or returns null. The backward pass
// throws InvalidArgument when the module was given to DDP after this call.
[[nodiscard]] std::shared_ptr<OptimizersInBackward> apply_optimizer_in_backward(
    const std::vector<at::Tensor>& parameters, const OptimizerFactory& factory);

// With DDP: registers a hook in `ddp` that sums each bucket, divides the sum by the bucket's divisor, as PyTorch does,
// and then steps the bucket's parameters with the averages, on a lane, except those that were frozen since. At the end
// of each synchronized backward pass the gradients of `parameters` are undefined, and the gradients of the other
// parameters hold the averages. DDP has one hook only, so `ddp` must have none; call this function before training.
// Collective as DdpCore::register_comm_hook() is. hooks/optimizer_overlap_hooks.h states what users of a hook that
// steps in the backward pass have to know.
//
// Throws InvalidArgument for the parameters and factories that the overload above refuses, for a parameter that is not
// of the module of `ddp`, and where `ddp` has a hook; UnsupportedError with DDP's mixed precision. The backward pass
// throws InvalidArgument when one of `parameters` was in no bucket (its gradient is sparse, delayed or ignored by DDP),
// and on a rank that has frozen one of `parameters` which another rank used: the other rank stepped the parameter.
[[nodiscard]] std::shared_ptr<OptimizersInBackward> apply_optimizer_in_backward(
    DdpCore& ddp, const std::vector<at::Tensor>& parameters, const OptimizerFactory& factory);

}  // namespace gradwire

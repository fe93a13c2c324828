// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The optimizer's step inside the backward pass: each bucket's parameters step as soon as their gradients are averaged.
//
//   auto hook = gradwire::make_hook_then_optimizer(
//       gradwire::make_allreduce_hook(), [](const std::string&, const at::Tensor& parameter) {
//         return std::make_unique<torch::optim::Adam>(std::vector<at::Tensor>{parameter},
//         torch::optim::AdamOptions(1e-3));
//       });
//   ddp.register_comm_hook(hook);
//   for (...) {
//     ddp.zero_grad();
//     loss_of(ddp(x)).backward();      // gradients are averaged and parameters have stepped by its end
//   }
//
// The same bits as the inner hook followed by one optimizer.step() over all parameters, for optimizers that treat each
// parameter by itself (all of torch::optim but LBFGS).
//
// What a user has to know:
// - Do not call a step of your own. `.grad` holds the averages at the end of backward, as without this hook; they
//   accumulate until zero_grad(), as ever.
// - A parameter changes while the backward pass of others still runs. Autograd does not need it any more: its gradient
//   is only ready when all nodes that use it have run. What uses its value past autograd (detach(), a buffer that
//   shares its memory) sees the new one, and a second backward pass over the same graph (retain_graph, create_graph) is
//   refused by autograd, which sees that the parameter changed.
// - What wants all gradients before the step (clipping by global norm, skipping a step because of an Inf) comes too
//   late; use the inner hook alone for that.
// - After an error in backward some parameters have stepped and others have not; go on from a checkpoint.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "gradwire/base/mutex.h"
#include "gradwire/ddp/comm_hook.h"

namespace torch::optim {
class Optimizer;
}

namespace gradwire {

// Makes the optimizer of one parameter; called once a parameter, one call at a time. `name` as in the module. Null:
// this parameter does not step here.
using ParameterOptimizerFactory =
    std::function<std::unique_ptr<torch::optim::Optimizer>(const std::string& name, const at::Tensor& parameter)>;

// Steps one parameter with its averaged gradient, which has the parameter's sizes and may be overwritten. On a lane;
// for several parameters at once, but for none twice at once.
using ParameterStep = std::function<void(const std::string& name, at::Tensor parameter, at::Tensor gradient)>;

// The hook that make_hook_then_optimizer() makes. Has the inner hook's traits, and calls it first; bytes are the inner
// hook's.
class HookThenOptimizer final : public CommHook {
 public:
  HookThenOptimizer(std::shared_ptr<CommHook> inner, ParameterOptimizerFactory factory);
  ~HookThenOptimizer() override;

  Future run(GradBucket& bucket) override;
  void end_iteration() override { inner_->end_iteration(); }

  // Calls `visit` for the optimizer of each parameter that has stepped, in the order of their names, e.g. to set a
  // learning rate. Between iterations. Optimizers are made at a parameter's first step, so what is to hold for all
  // belongs into the factory.
  void for_each(const std::function<void(const std::string& name, torch::optim::Optimizer&)>& visit)
      GRADWIRE_EXCLUDES(mutex_);

  // The inner hook's state, and "optimizer/<part>/<parameter's name>" for each part of the optimizers' state (Adam:
  // step, exp_avg, exp_avg_sq). Options (learning rate, ...) are the factory's. Loaded state is given to a parameter's
  // optimizer when it is made or, if there is one, at its next step; it must be of the same kind of optimizer
  // (InvalidArgument, at the step).
  HookState state_dict() const override GRADWIRE_EXCLUDES(mutex_);
  void load_state_dict(const HookState& state) override GRADWIRE_EXCLUDES(mutex_);

 private:
  using Parts = std::map<std::string, c10::IValue>;
  struct Entry {
    at::Tensor parameter;
    std::unique_ptr<torch::optim::Optimizer> optimizer;
  };
  torch::optim::Optimizer* optimizer_of(const std::string& name, const at::Tensor& parameter) GRADWIRE_EXCLUDES(mutex_);
  void give_state(const std::string& name, Entry& entry, const Parts& parts) GRADWIRE_REQUIRES(mutex_);

  const std::shared_ptr<CommHook> inner_;
  const ParameterOptimizerFactory factory_;
  mutable Mutex mutex_;
  std::map<std::string, Entry> entries_ GRADWIRE_GUARDED_BY(mutex_);
  std::map<std::string, Parts> loaded_ GRADWIRE_GUARDED_BY(mutex_);  // by parameter; not given to an optimizer yet
};

// Throws InvalidArgument when an argument is null.
std::shared_ptr<HookThenOptimizer> make_hook_then_optimizer(std::shared_ptr<CommHook> inner,
                                                            ParameterOptimizerFactory factory);

// The same with a function in the place of optimizers. Memory is the inner hook's.
std::shared_ptr<CommHook> make_hook_then_step(std::shared_ptr<CommHook> inner, ParameterStep step);

}  // namespace gradwire

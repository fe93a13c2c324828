// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Hooks that step the optimizer inside the backward pass: the parameters of a bucket step as soon as their gradients
// are averaged.
//
//   const auto adam = [](const std::string&, const at::Tensor& parameter) {
//     return std::make_unique<torch::optim::Adam>(std::vector<at::Tensor>{parameter}, torch::optim::AdamOptions(1e-3));
//   };
//   ddp.register_comm_hook(gradwire::make_hook_then_optimizer(gradwire::make_allreduce_hook(), adam));
//   for (...) {
//     ddp.zero_grad();
//     loss_of(ddp(x)).backward();      // at its end the parameters have stepped
//   }
//
// The result has the same bits as the inner hook followed by one optimizer.step() over all parameters, for optimizers
// that treat each parameter separately (all of torch::optim except LBFGS). The exception is a parameter that no rank
// used, see below.
//
// Notes for users:
// - A parameter that no rank used in an iteration (find_unused_parameters, static_graph) steps with a gradient of
//   zeros, as in PyTorch: weight decay and momentum change it, and so does what a hook still owed of it. The plain
//   optimizer does not step a parameter without a gradient. To leave a parameter alone, freeze it: a parameter that
//   needs no gradient (requires_grad(false)) does not step. Freeze the same ones on all ranks, between two iterations:
//   a rank that has frozen a parameter which another rank used ends the iteration with an InvalidArgument.
// - Do not call optimizer.step(). At the end of the backward pass `.grad` holds the averages, as without this hook.
//   The averages accumulate until zero_grad(), as always.
// - A parameter changes while the backward pass still computes other gradients. Autograd no longer needs the value of
//   the parameter then: a gradient is ready only when all nodes that use the parameter have run. Code that reads the
//   value without autograd (detach(), a buffer that shares the memory) sees the new value. Autograd refuses a second
//   backward pass over the same graph (retain_graph, create_graph), because the parameter has changed.
// - Do not use this hook when the program needs all gradients before the step (clipping by the global norm, skipping a
//   step because of an Inf). Use the inner hook alone.
// - After an error in the backward pass some parameters have stepped and others have not. Continue from a checkpoint.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/ddp/comm_hook.h"
#include "gradwire/ddp/first_rank_memory.h"

namespace torch::optim {
class Optimizer;
}

namespace gradwire {

namespace internal {
class FrozenParameters;
class UnsteppedParameters;
}  // namespace internal

// Makes the optimizer of one parameter. `name` is the parameter's name in the module. Called before the parameter's
// first step, also where the parameter needs no gradient, one call at a time; called again with another tensor of the
// same sizes when loaded state is given to an optimizer. Returns null for a parameter that this hook must not step.
using ParameterOptimizerFactory =
    std::function<std::unique_ptr<torch::optim::Optimizer>(const std::string& name, const at::Tensor& parameter)>;

// Steps one parameter, which needs a gradient, with its averaged gradient. The gradient has the parameter's sizes, and
// the function may overwrite it; .grad then holds what the function has left there. Called on lanes, for several
// parameters at the same time, but never twice at the same time for one parameter.
using ParameterStep = std::function<void(const std::string& name, at::Tensor parameter, at::Tensor gradient)>;

// The hook that make_hook_then_optimizer() makes. It runs the inner hook, then steps the parameters of the bucket. It
// has the traits of the inner hook, but is no single collective, and sends the bytes of the inner hook.
class HookThenOptimizer final : public CommHook, public FirstRankMemory {
 public:
  // Throws InvalidArgument when an argument is null.
  HookThenOptimizer(std::shared_ptr<CommHook> inner, ParameterOptimizerFactory factory);
  ~HookThenOptimizer() override;

  Future run(GradBucket& bucket) override;
  void revert_unused(const std::vector<std::string>& names) override;
  void end_iteration() override;
  // As the inner hook. The state of the optimizers is the same on all ranks.
  bool memory_lies_with_first_ranks() const override;

  // Calls `visit` for the optimizer of each parameter that has stepped, in the order of the names, for example to set a
  // learning rate. Call it between iterations. A parameter's optimizer is made at the first step: put settings that
  // hold for all optimizers into the factory.
  void for_each(const std::function<void(const std::string& name, torch::optim::Optimizer&)>& visit)
      GRADWIRE_EXCLUDES(mutex_);

  // The state is the inner hook's state, and "optimizer/<part>/<parameter's name>" for each part of the optimizers'
  // state (Adam: step, exp_avg, exp_avg_sq). The options of the optimizers (learning rate, ...) are not saved: the
  // factory sets them. load_state_dict() gives the loaded state to a parameter's optimizer at the parameter's next
  // step. The state must come from the same kind of optimizer, or else that step throws an InvalidArgument.
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
  const std::unique_ptr<internal::FrozenParameters> frozen_;
  const std::unique_ptr<internal::UnsteppedParameters> unstepped_;
  mutable Mutex mutex_;
  std::map<std::string, Entry> entries_ GRADWIRE_GUARDED_BY(mutex_);
  // Loaded state, by parameter, that no optimizer has been given yet.
  std::map<std::string, Parts> loaded_ GRADWIRE_GUARDED_BY(mutex_);
};

// Throws InvalidArgument when an argument is null.
std::shared_ptr<HookThenOptimizer> make_hook_then_optimizer(std::shared_ptr<CommHook> inner,
                                                            ParameterOptimizerFactory factory);

// The same with the function `step` instead of optimizers. The state is the inner hook's state. Throws InvalidArgument
// when an argument is null.
std::shared_ptr<CommHook> make_hook_then_step(std::shared_ptr<CommHook> inner, ParameterStep step);

}  // namespace gradwire

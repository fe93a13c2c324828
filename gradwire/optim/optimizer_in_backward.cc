// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/optim/optimizer_in_backward.h"

#include <c10/core/GradMode.h>

#include <atomic>
#include <map>
#include <set>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/accumulator_hook_internal.h"
#include "gradwire/hooks/averaged_bucket_internal.h"
#include "gradwire/hooks/frozen_internal.h"
#include "gradwire/optim/full_precision_internal.h"
#include "gradwire/optim/param_groups_internal.h"
#include "gradwire/process_group/dtype_internal.h"

namespace gradwire {
namespace {

using Optimizers = std::vector<std::unique_ptr<torch::optim::Optimizer>>;

constexpr const char* kName = "apply_optimizer_in_backward()";

Optimizers make_optimizers(const std::vector<at::Tensor>& parameters, const OptimizerFactory& factory) {
  if (factory == nullptr) throw InvalidArgument(concat(kName, " needs a factory of optimizers; got null."));
  Optimizers optimizers;
  for (const at::Tensor& parameter : parameters) {
    internal::ParamGroups group;
    group.emplace_back(std::vector<at::Tensor>{parameter});
    optimizers.push_back(factory(std::move(group)));
    if (optimizers.back() == nullptr) throw InvalidArgument(concat(kName, ": the factory returned no optimizer."));
  }
  return optimizers;
}

void require_gradients(const std::vector<at::Tensor>& parameters) {
  internal::require_parameters(kName, parameters);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].requires_grad()) continue;
    throw InvalidArgument(concat(kName, ": parameter number ", i, " needs no gradient; leave it out."));
  }
}

class LocalOptimizers final : public OptimizersInBackward {
 public:
  LocalOptimizers(const std::vector<at::Tensor>& parameters, const OptimizerFactory& factory)
      : parameters_(parameters), optimizers_(make_optimizers(parameters, factory)) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      hooks_.emplace_back(parameters_[i], [this, i] { step(i); });
      if (has_no_other_hook(i)) continue;
      throw InvalidArgument(concat(kName, ": parameter number ", i,
                                   " has a hook on its gradient's accumulation already: an optimizer in the backward, "
                                   "or DistributedDataParallel's; with the latter, pass ddp.core()."));
    }
  }
  LocalOptimizers(const LocalOptimizers&) = delete;
  LocalOptimizers& operator=(const LocalOptimizers&) = delete;

  const Optimizers& optimizers() const override { return optimizers_; }

 private:
  bool has_no_other_hook(std::size_t i) const {
    const torch::autograd::Node* node = hooks_[i].node();  // null: the parameter needed no gradient
    return node == nullptr || node->post_hooks().size() == 1;
  }

  // At the end of the accumulation of the parameter's gradient.
  void step(std::size_t i) {
    if (!has_no_other_hook(i)) {
      throw InvalidArgument(
          concat(kName,
                 ": a parameter got another hook on its gradient's accumulation since; was the module "
                 "given to DistributedDataParallel? Wrap it first, and pass ddp.core()."));
    }
    const at::Tensor& parameter = parameters_[i];
    if (!parameter.grad().defined()) return;
    const c10::NoGradGuard no_grad;
    optimizers_[i]->step();
    parameter.mutable_grad() = at::Tensor();
  }

  const std::vector<at::Tensor> parameters_;
  const Optimizers optimizers_;
  std::vector<internal::AccumulatorHook> hooks_;
};

class StepInHook final : public CommHook, public OptimizersInBackward {
 public:
  StepInHook(const std::vector<at::Tensor>& parameters, const OptimizerFactory& factory)
      : CommHook({.name = "optimizer_in_backward", .parallel_safe = true}),
        parameters_(parameters),
        optimizers_(make_optimizers(parameters, factory)) {
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      by_parameter_[parameters_[i].unsafeGetTensorImpl()] = optimizers_[i].get();
  }

  Future run(GradBucket& bucket) override {
    const c10::NoGradGuard no_grad;
    at::Tensor buffer = bucket.buffer();
    const bool divides_first = internal::divides_before_sum(buffer.scalar_type());
    if (divides_first) buffer.div_(bucket.divisor());
    bucket.group().all_reduce({buffer})->wait();
    if (!divides_first) buffer.div_(bucket.divisor());
    frozen_.watch(bucket, [&](std::size_t place) { return optimizer_of(bucket.parameters()[place]) != nullptr; });
    const std::vector<at::Tensor> gradients = bucket.gradients();
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      torch::optim::Optimizer* const optimizer = optimizer_of(bucket.parameters()[i]);
      if (optimizer == nullptr) continue;
      ++came_;
      if (!bucket.parameters()[i].requires_grad()) continue;
      const internal::LentGradient lent(bucket.parameters()[i], gradients[i]);
      optimizer->step();
    }
    return completed_future(buffer);
  }

  void revert_unused(const std::vector<std::string>& names) override { frozen_.revert_unused(names); }

  void end_iteration() override {
    const std::size_t came = came_.exchange(0);
    frozen_.end_iteration();
    if (came != parameters_.size()) {
      throw InvalidArgument(concat(kName, ": ", parameters_.size() - came, " of ", parameters_.size(),
                                   " parameters came in no bucket: their gradients are sparse, delayed or ignored by "
                                   "DistributedDataParallel. Leave them out, and step them after the backward pass."));
    }
    for (const at::Tensor& parameter : parameters_) parameter.mutable_grad() = at::Tensor();
  }

  const Optimizers& optimizers() const override { return optimizers_; }

 private:
  // Null for a parameter that does not step in the backward pass.
  torch::optim::Optimizer* optimizer_of(const at::Tensor& parameter) const {
    const auto found = by_parameter_.find(parameter.unsafeGetTensorImpl());
    return found == by_parameter_.end() ? nullptr : found->second;
  }

  const std::vector<at::Tensor> parameters_;
  const Optimizers optimizers_;
  std::map<const c10::TensorImpl*, torch::optim::Optimizer*> by_parameter_;
  std::atomic<std::size_t> came_{0};  // in buckets of this iteration
  internal::FrozenParameters frozen_;
};

}  // namespace

std::shared_ptr<OptimizersInBackward> apply_optimizer_in_backward(const std::vector<at::Tensor>& parameters,
                                                                  const OptimizerFactory& factory) {
  require_gradients(parameters);
  return std::make_shared<LocalOptimizers>(parameters, factory);
}

std::shared_ptr<OptimizersInBackward> apply_optimizer_in_backward(DdpCore& ddp,
                                                                  const std::vector<at::Tensor>& parameters,
                                                                  const OptimizerFactory& factory) {
  require_gradients(parameters);
  internal::require_full_precision(kName, ddp);
  std::set<const c10::TensorImpl*> of_ddp;
  for (const at::Tensor& parameter : ddp.module().parameters()) of_ddp.insert(parameter.unsafeGetTensorImpl());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (of_ddp.contains(parameters[i].unsafeGetTensorImpl())) continue;
    throw InvalidArgument(
        concat(kName, ": parameter number ", i, " is not one of the DistributedDataParallel's module."));
  }
  auto hook = std::make_shared<StepInHook>(parameters, factory);
  ddp.register_comm_hook(hook);
  return hook;
}

}  // namespace gradwire

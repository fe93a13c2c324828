// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/delayed_reduction_internal.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

namespace gradwire::internal {

DelayedReduction::DelayedReduction(std::vector<at::Tensor> parameters, at::Tensor trigger)
    : parameters_(std::move(parameters)), trigger_(std::move(trigger)) {}

DelayedReduction::~DelayedReduction() {
  if (accumulator_) accumulator_->del_post_hook(hook_key_);
}

void DelayedReduction::attach(std::shared_ptr<ProcessGroup> group) {
  group_ = std::move(group);
  accumulator_ = torch::autograd::impl::grad_accumulator(trigger_);
  using Variables = torch::autograd::variable_list;
  hook_key_ = accumulator_->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
      [weak = weak_from_this()](const Variables& outputs, const Variables&) {
        const auto self = weak.lock();
        if (self == nullptr || self->divisor_ == 0) return outputs;
        self->start(/*zeros=*/false);
        torch::autograd::Engine::get_default_engine().queue_callback([self] { self->finish(); });
        return outputs;
      }));
}

void DelayedReduction::expect(int divisor) { divisor_ = divisor; }

void DelayedReduction::shadow(int divisor) {
  divisor_ = divisor;
  start(/*zeros=*/true);
  finish();
}

void DelayedReduction::start(bool zeros) {
  const c10::NoGradGuard no_grad;
  dividing_by_ = divisor_.exchange(0);
  under_way_.clear();
  for (const at::Tensor& parameter : parameters_) {
    const auto same = std::find_if(under_way_.begin(), under_way_.end(), [&](const Message& message) {
      return message.parameters.front().options().type_equal(parameter.options()) &&
             message.parameters.front().device() == parameter.device();
    });
    Message& message = same != under_way_.end() ? *same : under_way_.emplace_back();
    message.parameters.push_back(parameter);
  }
  for (Message& message : under_way_) {
    std::vector<at::Tensor> flat;
    for (const at::Tensor& parameter : message.parameters) {
      const bool has = !zeros && parameter.grad().defined();
      flat.push_back(has ? parameter.grad().reshape({-1}) : at::zeros({parameter.numel()}, parameter.options()));
    }
    message.buffer = at::cat(flat);
    message.work = group_->all_reduce({message.buffer});
  }
}

void DelayedReduction::finish() {
  const c10::NoGradGuard no_grad;
  for (const Message& message : std::exchange(under_way_, {})) {
    message.work->wait();
    at::Tensor average = message.buffer;
    average.div_(dividing_by_);
    std::int64_t offset = 0;
    for (const at::Tensor& parameter : message.parameters) {
      const at::Tensor part = average.narrow(0, offset, parameter.numel()).view(parameter.sizes());
      offset += parameter.numel();
      at::Tensor& grad = parameter.mutable_grad();
      if (grad.defined()) {
        grad.copy_(part);
      } else {
        grad = at::empty_like(parameter, parameter.options().requires_grad(false)).copy_(part);
      }
    }
  }
}

}  // namespace gradwire::internal

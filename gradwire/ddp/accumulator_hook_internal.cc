// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/accumulator_hook_internal.h"

#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <utility>

namespace gradwire::internal {

AccumulatorHook::AccumulatorHook(const at::Tensor& parameter, std::function<void()> action)
    : accumulator_(torch::autograd::impl::grad_accumulator(parameter)) {
  if (!accumulator_) return;
  using Variables = torch::autograd::variable_list;
  key_ = accumulator_->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
      [action = std::move(action)](const Variables& outputs, const Variables&) {
        action();
        return outputs;
      }));
}

AccumulatorHook::~AccumulatorHook() {
  if (accumulator_) accumulator_->del_post_hook(key_);
}

LateAccumulatorHook::LateAccumulatorHook(AccumulatorHook&& hook)
    : accumulator_(weak_of(hook.accumulator_)), key_(hook.key_) {
  hook.accumulator_.reset();
}

LateAccumulatorHook::~LateAccumulatorHook() {
  if (const auto accumulator = accumulator_.lock()) accumulator->del_post_hook(key_);
}

bool AccumulatorHook::is_of(const at::Tensor& parameter) const {
  if (!accumulator_) return !parameter.requires_grad();
  return torch::autograd::impl::try_get_grad_accumulator(parameter) == accumulator_;
}

}  // namespace gradwire::internal

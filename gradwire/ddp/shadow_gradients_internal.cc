// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/shadow_gradients_internal.h"

#include <c10/core/GradMode.h>

#include <set>
#include <utility>

namespace gradwire::internal {

ShadowGradients::ShadowGradients(std::vector<at::Tensor> parameters) : parameters_(std::move(parameters)) {}

void ShadowGradients::before_shadow() {
  if (!own_.empty()) return;
  const c10::NoGradGuard no_grad;
  for (const at::Tensor& parameter : parameters_) {
    const at::Tensor& grad = parameter.grad();
    // The averages may overwrite the memory of the gradient.
    own_.push_back(grad.defined() ? grad.clone() : grad);
  }
}

void ShadowGradients::after_shadow(std::vector<at::Tensor> unused) {
  unused_ = std::move(unused);
  left_.clear();
  for (const at::Tensor& parameter : parameters_) {
    const at::Tensor& grad = parameter.grad();
    const std::uint32_t version = grad.defined() ? static_cast<std::uint32_t>(grad._version()) : 0;
    left_.push_back({decltype(Left::gradient)(grad.getIntrusivePtr()), version});
  }
}

void ShadowGradients::end_join() {
  std::set<const c10::TensorImpl*> unused;
  for (const at::Tensor& parameter : unused_) unused.insert(parameter.unsafeGetTensorImpl());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (unused.contains(parameters_[i].unsafeGetTensorImpl())) parameters_[i].mutable_grad() = own_[i];
  }
  unused_.clear();
}

void ShadowGradients::leave() {
  for (std::size_t i = 0; i < left_.size(); ++i) {
    at::Tensor& grad = parameters_[i].mutable_grad();
    const Left& left = left_[i];
    if (grad.defined() && left.gradient.lock() == grad.getIntrusivePtr() && grad._version() == left.version)
      grad = own_[i];
  }
  left_.clear();
  own_.clear();
  unused_.clear();
}

}  // namespace gradwire::internal

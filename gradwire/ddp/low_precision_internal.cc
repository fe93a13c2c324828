// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/low_precision_internal.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>

namespace gradwire::internal {

LowPrecision::LowPrecision(const std::vector<at::Tensor>& parameters, at::ScalarType dtype) : dtype_(dtype) {
  for (const at::Tensor& parameter : parameters) {
    if (parameter.is_floating_point() && parameter.scalar_type() != dtype) entries_.push_back({parameter, {}});
  }
}

bool LowPrecision::lower() {
  // A pass that ended with an exception has not.
  restoring_ = false;
  if (lowered_ || entries_.empty()) return false;
  const c10::NoGradGuard no_grad;
  lowered_ = true;
  for (Entry& entry : entries_) {
    entry.full = entry.parameter.variable_data();
    entry.parameter.set_data(entry.full.to(dtype_));
  }
  return true;
}

void LowPrecision::restore_at_end(const std::shared_ptr<LowPrecision>& self) {
  if (!self->lowered_ || self->restoring_.exchange(true)) return;
  torch::autograd::Engine::get_default_engine().queue_callback([self] { self->restore(); });
}

void LowPrecision::restore() {
  if (!lowered_) return;
  const c10::NoGradGuard no_grad;
  lowered_ = false;
  for (Entry& entry : entries_) {
    const at::ScalarType dtype = entry.full.scalar_type();
    entry.parameter.set_data(entry.full);
    entry.full.reset();
    at::Tensor& grad = entry.parameter.mutable_grad();
    if (grad.defined() && grad.scalar_type() != dtype) grad = grad.to(dtype);
  }
}

}  // namespace gradwire::internal

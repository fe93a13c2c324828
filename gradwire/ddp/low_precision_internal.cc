// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/low_precision_internal.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>

#include "gradwire/base/error.h"

namespace gradwire::internal {

LowPrecision::LowPrecision(const std::vector<at::Tensor>& parameters, at::ScalarType dtype) : dtype_(dtype) {
  for (const at::Tensor& parameter : parameters) {
    if (parameter.is_floating_point() && parameter.scalar_type() != dtype) entries_.push_back({parameter, {}});
  }
}

bool LowPrecision::lower() {
  // A pass that ended with an exception has not.
  restoring_ = false;
  if (lowered_ && changed()) restore();
  if (lowered_ || entries_.empty()) return false;
  const c10::NoGradGuard no_grad;
  lowered_ = true;
  for (Entry& entry : entries_) {
    entry.full = entry.parameter.variable_data();
    entry.parameter.set_data(entry.full.to(dtype_));
    entry.version = entry.parameter._version();
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
  const bool lost = changed();
  lowered_ = false;
  for (Entry& entry : entries_) {
    const at::ScalarType dtype = entry.full.scalar_type();
    entry.parameter.set_data(entry.full);
    entry.full.reset();
    at::Tensor& grad = entry.parameter.mutable_grad();
    if (grad.defined() && grad.scalar_type() != dtype) grad = grad.to(dtype);
  }
  if (!lost) return;
  throw InvalidArgument(
      "A parameter was changed while mixed_precision had it in a lower precision, between forward() and the end of the "
      "backward pass; the change is lost. Step optimizers after the backward pass, not in hooks.");
}

bool LowPrecision::changed() const {
  return std::any_of(entries_.begin(), entries_.end(),
                     [](const Entry& entry) { return entry.parameter._version() != entry.version; });
}

}  // namespace gradwire::internal

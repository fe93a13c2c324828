// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/elastic/parameter_watch_internal.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstring>

namespace gradwire::internal {
namespace {

// How many values of a parameter are looked at, from the first to the last one.
constexpr std::int64_t kValues = 8;

bool has_values(const at::Tensor& parameter) {
  return parameter.defined() && parameter.layout() == at::kStrided && parameter.numel() > 0 &&
         parameter.is_non_overlapping_and_dense() && !parameter.is_meta();
}

void append_values(const at::Tensor& parameter, std::vector<std::byte>& values) {
  const auto* const data = static_cast<const std::byte*>(parameter.const_data_ptr());
  const std::size_t size = parameter.element_size();
  const std::int64_t last = parameter.numel() - 1;
  for (std::int64_t i = 0; i < kValues; ++i) {
    const auto place = static_cast<std::size_t>(last * i / (kValues - 1));
    values.insert(values.end(), data + place * size, data + (place + 1) * size);
  }
}

std::vector<std::byte> values_on_cpu(const std::vector<at::Tensor>& parameters) {
  std::vector<std::byte> values;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.is_cpu() && has_values(parameter)) append_values(parameter, values);
  }
  return values;
}

// The first values, in the order of the memory.
at::Tensor values_on_device(const at::Tensor& parameter) {
  return parameter.detach().as_strided({std::min(parameter.numel(), kValues)}, {1});
}

}  // namespace

void ParameterWatch::keep(const std::vector<at::Tensor>& parameters) {
  const c10::NoGradGuard no_grad;
  versions_.clear();
  from_device_.assign(parameters.size(), at::Tensor());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    versions_.push_back(static_cast<std::uint32_t>(parameters[i]._version()));
    if (!parameters[i].is_cpu() && has_values(parameters[i])) from_device_[i] = values_on_device(parameters[i]).clone();
  }
  values_ = values_on_cpu(parameters);
}

bool ParameterWatch::has_changed(const std::vector<at::Tensor>& parameters,
                                 const std::map<const c10::TensorImpl*, std::uint32_t>& versions) const {
  const c10::NoGradGuard no_grad;
  if (parameters.size() != versions_.size()) return true;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto brought_back = versions.find(parameters[i].unsafeGetTensorImpl());
    const auto version =
        brought_back == versions.end() ? static_cast<std::uint32_t>(parameters[i]._version()) : brought_back->second;
    if (version != versions_[i]) return true;
    if (from_device_[i].defined() && !values_on_device(parameters[i]).equal(from_device_[i])) return true;
  }
  return values_on_cpu(parameters) != values_;
}

}  // namespace gradwire::internal

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/elastic/state_copy_internal.h"

#include <c10/core/GradMode.h>

#include <cstddef>
#include <utility>

#include "gradwire/base/error.h"

namespace gradwire::internal {
namespace {

// Makes `copies` copies of `values`.
void copy_values(std::vector<at::Tensor>& copies, const std::vector<at::Tensor>& values) {
  copies.resize(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const at::Tensor& value = values[i];
    at::Tensor& copy = copies[i];
    const bool fits = copy.defined() && copy.sizes() == value.sizes() && copy.scalar_type() == value.scalar_type() &&
                      copy.device() == value.device();
    if (fits) {
      copy.copy_(value);
    } else {
      copy = value.detach().clone();
    }
  }
}

}  // namespace

void StateCopy::keep(const std::vector<at::Tensor>& tensors, std::vector<StatePart> rest) {
  const c10::NoGradGuard no_grad;
  copy_values(tensors_, tensors);
  rest_.resize(rest.size());
  for (std::size_t i = 0; i < rest.size(); ++i) {
    rest_[i].text = std::move(rest[i].text);
    copy_values(rest_[i].tensors, rest[i].tensors);
  }
}

std::vector<ArrivedPart> StateCopy::give_back(const std::vector<at::Tensor>& tensors) {
  const c10::NoGradGuard no_grad;
  GRADWIRE_CHECK(tensors.size() == tensors_.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) at::Tensor(tensors[i]).copy_(tensors_[i]);
  std::vector<ArrivedPart> rest;
  for (StatePart& part : rest_) rest.push_back({part.text, std::exchange(part.tensors, {})});
  return rest;
}

}  // namespace gradwire::internal

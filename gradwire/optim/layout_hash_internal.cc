// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/optim/layout_hash_internal.h"

#include "gradwire/base/stable_hash.h"

namespace gradwire::internal {

void append_sizes(std::vector<std::int64_t>& numbers, const at::Tensor& tensor) {
  numbers.push_back(static_cast<std::int64_t>(tensor.scalar_type()));
  numbers.push_back(tensor.dim());
  numbers.insert(numbers.end(), tensor.sizes().begin(), tensor.sizes().end());
}

std::int64_t hash_of_layouts(const std::vector<at::Tensor>& parameters) {
  std::vector<std::int64_t> numbers;
  for (const at::Tensor& parameter : parameters) {
    append_sizes(numbers, parameter);
    numbers.insert(numbers.end(), parameter.strides().begin(), parameter.strides().end());
  }
  return static_cast<std::int64_t>(stable_hash(numbers));
}

}  // namespace gradwire::internal

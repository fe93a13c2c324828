// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Memory in order for tensors of any strides.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "gradwire/base/dtype.h"

namespace gradwire::internal {

// The tensor itself when its elements lie one after another, else a copy that does.
at::Tensor memory_with_values(const at::Tensor& tensor);

// The same for a tensor that is only written: memory of its size, without its values.
at::Tensor memory_for_results(const at::Tensor& tensor);

// Brings `memory` back into `tensor`, unless they are the same. Not seen by autograd.
void copy_back(const at::Tensor& tensor, const at::Tensor& memory);

// How a tensor is moved: as elements of its dtype, or, where gradwire does not know that (int16, float8, ...), as
// bytes.
struct Elements {
  DType dtype = DType::u8;
  std::size_t count = 0;
};
Elements elements_of(const at::Tensor& tensor);

}  // namespace gradwire::internal

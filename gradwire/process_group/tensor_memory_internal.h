// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Contiguous memory for tensors of any strides.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/MaybeOwned.h>

#include <cstddef>
#include <vector>

#include "gradwire/base/dtype.h"

namespace gradwire::internal {

// Contiguous memory for a tensor: the tensor itself, which is only borrowed, or other memory. (Counting a reference to
// the tensor would take a tenth of the time of a small call.)
using Memory = c10::MaybeOwned<at::Tensor>;

// Returns the tensor itself when it is contiguous, else a contiguous copy. `tensor` outlives the result.
Memory memory_with_values(const at::Tensor& tensor);
Memory memory_with_values(at::Tensor&& tensor) = delete;

// The same for a tensor that is only written: else contiguous memory of its size, without its values.
Memory memory_for_results(const at::Tensor& tensor);
Memory memory_for_results(at::Tensor&& tensor) = delete;

// Returns the same memory without a conjugation or negation that is still to be done: for what does not depend on them,
// such as magnitudes.
at::Tensor without_lazy_signs(at::Tensor tensor);

// Copies `memory` into `tensor`, unless they are the same. Elements of an expanded tensor that share memory get the
// value of the first of them. Autograd does not record the copy.
void copy_back(const at::Tensor& tensor, const at::Tensor& memory);

// Turns the sums of so many ranks into averages; of integers rounded toward zero.
void divide_average(const at::Tensor& sums, int ranks);

// How a tensor is moved: as elements of its dtype or, where gradwire does not know the dtype (int16, float8, ...), as
// bytes.
struct Elements {
  DType dtype = DType::u8;
  std::size_t count = 0;
};
Elements elements_of(const at::Tensor& tensor);

}  // namespace gradwire::internal

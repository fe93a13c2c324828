// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Norms whose bits depend on the values only, not on the number of compute threads, which may differ between ranks.
#pragma once

#include <ATen/core/Tensor.h>

namespace gradwire::internal {

// The sum of squares in float64. The number of elements determines the order of the sum. Elements of a dense tensor are
// taken in the order of memory. Complex numbers count by their magnitude. An undefined tensor gives 0.
double sum_of_squares(const at::Tensor& tensor);

// The largest magnitude. A NaN in `tensor` gives NaN; no elements, or an undefined tensor, gives 0.
double max_magnitude(const at::Tensor& tensor);

}  // namespace gradwire::internal

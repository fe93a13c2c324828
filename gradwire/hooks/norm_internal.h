// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Norms whose bits depend on the values alone: not on the number of compute threads, which may differ between ranks.
#pragma once

#include <ATen/core/Tensor.h>

namespace gradwire::internal {

// Sums of squares in float64, in an order that the number of elements determines. Elements are taken in the order of
// memory where the tensor is dense. Complex numbers count by their magnitude. An undefined tensor has 0.
double sum_of_squares(const at::Tensor& tensor);

// The largest magnitude; NaN when there is one; 0 for no elements.
double max_magnitude(const at::Tensor& tensor);

}  // namespace gradwire::internal

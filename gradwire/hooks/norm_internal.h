// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Norms. On the CPU, their bits depend on the values only, not on the number of compute threads, which may differ
// between ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace gradwire::internal {

// The sum of squares in float64. On the CPU, the number of elements determines the order of the sum. Elements of a
// dense tensor are taken in the order of memory, those of a sparse one in the order of its indices. Complex numbers
// count by their magnitude. An undefined tensor gives 0. A tensor on a device is summed there, in the device's order,
// and only the sum comes to the host.
double sum_of_squares(const at::Tensor& tensor);

// The same over all of `tensors`. The host waits once for each device, not for each tensor.
double sum_of_squares(const std::vector<at::Tensor>& tensors);

// The largest magnitude. A NaN in `tensor` gives NaN; no elements, or an undefined tensor, gives 0.
double max_magnitude(const at::Tensor& tensor);

}  // namespace gradwire::internal

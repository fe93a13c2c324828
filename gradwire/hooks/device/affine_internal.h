// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The affine quantization of the quantization hooks, for values on a device. The packets and the averages have the bits
// of kernels/affine.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace gradwire::internal {

// Returns the packet (uint8, 1-D) of `values` (float32, 1-D, contiguous, not empty) in rows of `row` values: the scales
// of all rows, their zero points, the codes.
at::Tensor encode_affine(const at::Tensor& values, std::int64_t row);

// Returns the average (float32, 1-D) of `count` values. `packets` holds the packets of all ranks, in rank order.
at::Tensor average_affine(const at::Tensor& packets, std::int64_t count, std::int64_t row, int ranks, int divisor);

}  // namespace gradwire::internal

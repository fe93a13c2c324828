// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The copy of gradients into buckets and out of them.
#pragma once

#include <ATen/core/Tensor.h>

namespace gradwire::internal {

// Computes destination = source * factor, with the same bits as PyTorch's multiplication by a number: half types are
// multiplied in float and rounded once. Factor 1 copies. Both tensors have the same sizes and dtype. Autograd records
// nothing. `streamed`: the values are not read again soon, so the stores may bypass the cache.
void copy_scaled(at::Tensor& destination, const at::Tensor& source, double factor, bool streamed);

}  // namespace gradwire::internal

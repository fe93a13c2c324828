// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Moves gradients into buckets and out of them.
#pragma once

#include <ATen/core/Tensor.h>

namespace gradwire::internal {

// destination = source * factor, with the bits of PyTorch's multiplication by a number (half types multiply in float
// and round once); factor 1 copies. Both have the same sizes and dtype; no autograd. `streamed`: the values are not
// read again soon, so that they need not go through the cache.
void copy_scaled(at::Tensor& destination, const at::Tensor& source, double factor, bool streamed);

}  // namespace gradwire::internal

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What ranks compare before they exchange parameters or gradients: dtypes, sizes and strides, as one number.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

namespace gradwire::internal {

// Appends the dtype, the number of dimensions and the sizes of `tensor` to `numbers`.
void append_sizes(std::vector<std::int64_t>& numbers, const at::Tensor& tensor);

// Returns a hash of the dtype, sizes and strides of each parameter, in order: of all that decides how a rank packs its
// parameters, which it does in the order of memory. Equal on ranks whose parameters are alike.
std::int64_t hash_of_layouts(const std::vector<at::Tensor>& parameters);

}  // namespace gradwire::internal

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Converts between libtorch's element types and gradwire's.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>

#include "gradwire/base/dtype.h"

namespace gradwire::internal {

// Returns none for a type that gradwire does not reduce; tensors of such a type may still be moved as bytes.
std::optional<DType> to_dtype(at::ScalarType type) noexcept;

// Only f16, bf16, f32 and f64.
std::optional<DType> to_floating_dtype(at::ScalarType type) noexcept;

// Whether an average is divided before the sum: a sum of float16 may be infinite where the average is not. Averages of
// other types are sums that are divided at the end, as in PyTorch.
bool divides_before_sum(at::ScalarType type) noexcept;

}  // namespace gradwire::internal

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// libtorch's element types and ours.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>

#include "gradwire/base/dtype.h"

namespace gradwire::internal {

// Nothing for a type that gradwire does not reduce (it may still be moved, as bytes).
std::optional<DType> to_dtype(at::ScalarType type) noexcept;

// Only f16, bf16, f32 and f64.
std::optional<DType> to_floating_dtype(at::ScalarType type) noexcept;

at::ScalarType to_scalar_type(DType dtype) noexcept;

}  // namespace gradwire::internal

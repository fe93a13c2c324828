// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Conversion between element types.
#pragma once

#include <cstddef>

#include "gradwire/base/dtype.h"

namespace gradwire::kernels {

// destination[i] = convert(source[i]) for i < count, among f16, bf16, f32, f64 in any combination (equal types copy).
//
// Rounds to nearest even, as PyTorch does; overflow gives infinity, NaN stays NaN (a quiet one), denormals are kept.
// `source` and `destination` may have any alignment and must not overlap, unless they are the same address and the
// types have the same size. Noexcept, thread-safe. Bits do not depend on the kernel.
void cast(DType from, const void* source, DType to, void* destination, std::size_t count) noexcept;

// The same after multiplying by `factor`: in f32 for everything but a source or destination of f64, which multiplies in
// f64.
void cast_scaled(DType from, const void* source, DType to, void* destination, std::size_t count,
                 double factor) noexcept;

}  // namespace gradwire::kernels

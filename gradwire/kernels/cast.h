// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Conversion between element types.
#pragma once

#include <cstddef>

#include "gradwire/base/dtype.h"

namespace gradwire::kernels {

// destination[i] = convert(source[i]) for i < count, among f16, bf16, f32, f64 in any combination; equal types copy
// bits.
//
// Rounds once, to nearest even; overflow gives infinity, denormals are kept, NaN stays NaN and becomes quiet. (f64 to a
// half type rounds once too, where PyTorch goes through f32 and rounds twice; the two differ close to halfway points
// only.) Bits do not depend on the kernel, but for the sign and payload of NaN. Other dtypes leave the destination as
// it is.
//
// `source` and `destination` may have any alignment and must not overlap, unless they are the same address and the
// types have the same size. Noexcept, thread-safe.
void cast(DType from, const void* source, DType to, void* destination, std::size_t count) noexcept;

// The same after multiplying by `factor`: in f32 for everything but a source or destination of f64, which multiplies in
// f64.
void cast_scaled(DType from, const void* source, DType to, void* destination, std::size_t count,
                 double factor) noexcept;

}  // namespace gradwire::kernels

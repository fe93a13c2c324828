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
// Rounds once, to nearest even. Overflow gives infinity, denormals are kept, and NaN becomes a quiet NaN. (f64 to a
// half type rounds once too; PyTorch goes through f32 and rounds twice, which differs close to halfway points only.)
// Bits do not depend on the kernel, except for the sign and payload of NaN. For other dtypes the destination is left
// alone.
//
// `source` and `destination` may have any alignment and must not overlap, unless they are the same address and the
// types have the same size. Noexcept, thread-safe.
void cast(DType from, const void* source, DType to, void* destination, std::size_t count) noexcept;

// destination[i] = convert(source[i] * factor). The product is computed in f64 when the source or the destination is
// f64, else in f32. Otherwise as cast().
void cast_scaled(DType from, const void* source, DType to, void* destination, std::size_t count,
                 double factor) noexcept;

}  // namespace gradwire::kernels

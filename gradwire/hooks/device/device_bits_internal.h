// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Bits, blocks and random numbers in tensors on a device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "gradwire/kernels/philox.h"

namespace gradwire::internal {

// The bits of float32 values as int32.
at::Tensor bits_of(const at::Tensor& values);

// The memory of a contiguous tensor as bytes, 1-D.
at::Tensor as_bytes(const at::Tensor& tensor);

// `count` numbers of `dtype` that begin at byte `first` of `bytes`, which may have any alignment.
at::Tensor numbers_in(const at::Tensor& bytes, std::int64_t first, std::int64_t count, at::ScalarType dtype);

// Rows of `block` values; the last row is filled with zeros.
at::Tensor rows_of(const at::Tensor& values, std::int64_t block);

// Packs codes (uint8, 1-D, below 2^bits) from the low bits of a byte upwards; unused bits of the last byte are 0.
// `bits` is 8, 4, 2 or 1.
at::Tensor pack(const at::Tensor& codes, int bits);
// The first `count` codes that pack() has packed.
at::Tensor unpack(const at::Tensor& bytes, int bits, std::int64_t count);

// 1 where the sign bit is set, else 0 (uint8).
at::Tensor signs_of(const at::Tensor& values);

// The first `count` random numbers of the sequence of `key` (kernels/philox.h) as int64 in [0, 2^32).
at::Tensor philox_numbers(const kernels::PhiloxKey& key, std::int64_t count, const at::Device& device);

// dividend / divisor in float32, rounded once. A division by a number may be a product with its reciprocal.
at::Tensor divided_by(const at::Tensor& dividend, double divisor);

}  // namespace gradwire::internal

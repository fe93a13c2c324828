// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// fp16, bf16: each value by itself, by the functions that are the CPU's reference (kernels/element_internal.h).
#pragma once

#include "gradwire/hooks/device/cuda/groups_internal.h"
#include "gradwire/kernels/element_internal.h"

namespace gradwire::cuda {

struct F16 {
  static GRADWIRE_HOST_DEVICE std::uint16_t encode(float value) { return kernels::f32_to_f16(value); }
  static GRADWIRE_HOST_DEVICE float decode(std::uint16_t bits) { return kernels::f16_to_f32(bits); }
};
struct Bf16 {
  static GRADWIRE_HOST_DEVICE std::uint16_t encode(float value) { return kernels::f32_to_bf16(value); }
  static GRADWIRE_HOST_DEVICE float decode(std::uint16_t bits) { return kernels::bf16_to_f32(bits); }
};

template <class Type>
GRADWIRE_HOST_DEVICE void encode_cast_value(const float* values, std::uint8_t* bytes, std::size_t i) {
  const std::uint16_t bits = Type::encode(values[i]);
  memcpy(__builtin_assume_aligned(bytes + 2 * i, 2), &bits, 2);
}

template <class Type>
GRADWIRE_HOST_DEVICE void decode_cast_value(const std::uint8_t* bytes, const float* sum, float* values, std::size_t i) {
  std::uint16_t bits;
  memcpy(&bits, bytes + 2 * i, 2);
  const float value = Type::decode(bits);
  values[i] = sum == nullptr ? value : sum[i] + value;
}

}  // namespace gradwire::cuda

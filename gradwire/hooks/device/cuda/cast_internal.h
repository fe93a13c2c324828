// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// fp16, bf16: group by group, by the functions that are the CPU's reference (kernels/element_internal.h).
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

inline constexpr unsigned kHalfGroup = kGroup / 2;  // values whose codes are one word

template <class Type>
GRADWIRE_HOST_DEVICE void encode_cast_group(const float* values, std::size_t count, std::uint8_t* bytes,
                                            std::size_t group) {
  const std::size_t first = kGroup * group;
  const unsigned size = group_size(first, count);
  float loaded[kGroup];
  load_group(values + first, size, loaded);
  for (unsigned from = 0; from < size; from += kHalfGroup) {
    const unsigned here = size - from < kHalfGroup ? size - from : kHalfGroup;
    std::uint64_t word = 0;
    for (unsigned i = 0; i < kHalfGroup; ++i) word |= std::uint64_t{Type::encode(loaded[from + i])} << (16 * i);
    store_codes(bytes + 2 * (first + from), here, 16, word);
  }
}

template <class Type>
GRADWIRE_HOST_DEVICE void decode_cast_group(const std::uint8_t* bytes, std::size_t count, const float* sum,
                                            float* values, std::size_t group) {
  const std::size_t first = kGroup * group;
  const unsigned size = group_size(first, count);
  float decoded[kGroup] = {};
  for (unsigned from = 0; from < size; from += kHalfGroup) {
    const unsigned here = size - from < kHalfGroup ? size - from : kHalfGroup;
    const std::uint64_t word = load_codes(bytes + 2 * (first + from), 2 * here);
    for (unsigned i = 0; i < kHalfGroup; ++i)
      decoded[from + i] = Type::decode(static_cast<std::uint16_t>(word >> (16 * i)));
  }
  store_decoded(sum, first, size, decoded, values);
}

}  // namespace gradwire::cuda

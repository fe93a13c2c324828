// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The codecs whose values lie in rows with a scale each, group by group: from values to codes and back. A format has
//   bits                        of a code
//   magnitude(value)            what the largest of a row is searched among
//   scale(largest)              the scale of a row with that largest magnitude
//   encode(values, scale, at)   the codes of a group whose first value has number `at`
//   decode(codes, scale, values)
// Each uses the functions of kernels/value_internal.h, which are also the CPU's reference.
#pragma once

#include "gradwire/hooks/device/cuda/groups_internal.h"
#include "gradwire/kernels/philox.h"
#include "gradwire/kernels/value_internal.h"

namespace gradwire::cuda {

// int8, int4, int2.
struct IntegerFormat {
  int bits;
  bool stochastic;
  kernels::PhiloxKey key;  // of the random numbers of stochastic rounding

  GRADWIRE_HOST_DEVICE std::uint32_t magnitude(float value) const { return kernels::magnitude_bits_of(value); }
  GRADWIRE_HOST_DEVICE float scale(std::uint32_t largest) const {
    return kernels::integer_scale(std::bit_cast<float>(largest), static_cast<float>((1 << (bits - 1)) - 1));
  }
  GRADWIRE_HOST_DEVICE std::uint64_t encode(const float (&values)[kGroup], float scale, std::size_t at) const {
    const float inverse = kernels::inverse_of(scale);
    std::uint64_t word = 0;
    for (unsigned half = 0; half < 2; ++half) {
      kernels::PhiloxBlock numbers{};
      if (stochastic && inverse != 0) numbers = kernels::philox_block(key, at / 4 + half);
      for (unsigned i = 0; i < 4; ++i) {
        const unsigned place = 4 * half + i;
        std::uint32_t code = 1u << (bits - 1);  // zero
        if (inverse != 0) {
          code = stochastic ? kernels::integer_code_stochastic(bits, values[place], inverse, numbers[i])
                            : kernels::integer_code(bits, values[place], inverse);
        }
        word |= std::uint64_t{code} << (static_cast<unsigned>(bits) * place);
      }
    }
    return word;
  }
  GRADWIRE_HOST_DEVICE void decode(std::uint64_t word, float scale, float (&values)[kGroup]) const {
    for (unsigned i = 0; i < kGroup; ++i) {
      const auto code = static_cast<std::uint32_t>(word >> (static_cast<unsigned>(bits) * i)) & ((1u << bits) - 1u);
      values[i] = kernels::integer_value(bits, code, scale);
    }
  }
};

// fp8_e4m3, fp8_e5m2.
struct Fp8Format {
  kernels::Fp8Kind kind;
  static constexpr int bits = 8;

  GRADWIRE_HOST_DEVICE std::uint32_t magnitude(float value) const {
    return kernels::is_finite(value) ? kernels::magnitude_bits_of(value) : 0;
  }
  GRADWIRE_HOST_DEVICE float scale(std::uint32_t largest) const {
    return kernels::power_of_two(kernels::fp8_exponent(std::bit_cast<float>(largest), kind.largest));
  }
  GRADWIRE_HOST_DEVICE std::uint64_t encode(const float (&values)[kGroup], float scale, std::size_t) const {
    const kernels::Fp8Factors factors(static_cast<int>(std::bit_cast<std::uint32_t>(scale) >> 23) - 127);
    std::uint64_t word = 0;
    for (unsigned i = 0; i < kGroup; ++i) {
      const float scaled = values[i] * factors.first * factors.second;
      word |= std::uint64_t{kernels::fp8_code(kind.layout, scaled)} << (8 * i);
    }
    return word;
  }
  GRADWIRE_HOST_DEVICE void decode(std::uint64_t word, float scale, float (&values)[kGroup]) const {
    for (unsigned i = 0; i < kGroup; ++i)
      values[i] = kernels::fp8_value(kind.layout, static_cast<std::uint32_t>(word >> (8 * i)) & 0xffu) * scale;
  }
};

// The signs of a group, one bit each: one_bit, sign.
GRADWIRE_HOST_DEVICE inline std::uint64_t encode_signs(const float (&values)[kGroup]) {
  std::uint64_t word = 0;
  for (unsigned i = 0; i < kGroup; ++i) word |= std::uint64_t{std::bit_cast<std::uint32_t>(values[i]) >> 31} << i;
  return word;
}
GRADWIRE_HOST_DEVICE inline void decode_signs(std::uint64_t word, float scale, float (&values)[kGroup]) {
  const auto bits = std::bit_cast<std::uint32_t>(scale);
  for (unsigned i = 0; i < kGroup; ++i)
    values[i] = std::bit_cast<float>(bits ^ static_cast<std::uint32_t>(word >> i & 1) << 31);
}

// The part of lane `lane` of `lanes` in a row (or a slice of a row): every `lanes`-th value, or group.
template <class Format>
GRADWIRE_HOST_DEVICE std::uint32_t largest_of(const Format& format, const float* values, std::size_t count,
                                              unsigned lane, unsigned lanes) {
  std::uint32_t largest = 0;
  for (std::size_t i = lane; i < count; i += lanes) {
    const std::uint32_t magnitude = format.magnitude(values[i]);
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

// Encodes the `count` values that begin at number `begin`, which begins a row or lies a whole number of groups after.
template <class Format>
GRADWIRE_HOST_DEVICE void encode_values(const Format& format, const float* values, std::size_t begin, std::size_t count,
                                        float scale, std::uint8_t* codes, unsigned lane, unsigned lanes) {
  for (std::size_t first = kGroup * lane; first < count; first += kGroup * lanes) {
    const unsigned size = group_size(first, count);
    float group[kGroup];
    load_group(values + begin + first, size, group);
    store_codes(codes + (begin + first) * static_cast<std::size_t>(format.bits) / 8, size, format.bits,
                format.encode(group, scale, begin + first));
  }
}

// Decodes group `group` of all groups of all rows. `bytes` are the scales, then the codes.
template <class Format>
GRADWIRE_HOST_DEVICE void decode_group(const Format& format, Rows rows, const std::uint8_t* bytes, const float* sum,
                                       float* values, std::size_t group) {
  const std::size_t row = group / rows.groups_in_row();
  const std::size_t within = kGroup * (group % rows.groups_in_row());
  if (within >= rows.length(row)) return;
  const std::size_t first = rows.begin(row) + within;
  const unsigned size = group_size(within, rows.length(row));
  const std::uint8_t* const codes = bytes + 4 * rows.number();
  float decoded[kGroup];
  format.decode(load_codes(codes + first * static_cast<std::size_t>(format.bits) / 8, code_bytes(size, format.bits)),
                load_float(bytes + 4 * row), decoded);
  store_decoded(sum, first, size, decoded, values);
}

}  // namespace gradwire::cuda

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The arithmetic of one value of a lossy codec, and of the scale of a block, in plain C++: the meaning that every
// vector loop and every kernel of CUDA has to match bit for bit. All functions are constexpr and call no function of
// the C library, so that nvcc compiles them for the device too (--expt-relaxed-constexpr).
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "gradwire/kernels/quantize.h"

namespace gradwire::kernels {

inline constexpr std::uint32_t kInfinityBits = 0x7f800000u;

// The bits of |value|: in the order of the magnitudes, infinity and NaN last.
constexpr std::uint32_t magnitude_bits_of(float value) noexcept {
  return std::bit_cast<std::uint32_t>(value) & 0x7fffffffu;
}
constexpr bool is_finite(float value) noexcept { return magnitude_bits_of(value) < kInfinityBits; }

// The scale of a block whose largest magnitude is `largest`, for codes from -levels to levels: 0 for a block that is
// (almost) zero, NaN for one that is not finite.
constexpr float integer_scale(float largest, float levels) noexcept {
  constexpr float kSmallest = 0x1p-118f;
  if (!is_finite(largest)) return std::numeric_limits<float>::quiet_NaN();
  if (largest < kSmallest) return 0;
  const float scale = largest / levels;
  // Rounded up, the largest number of all would decode to infinity.
  return is_finite(scale * levels) ? scale : std::bit_cast<float>(std::bit_cast<std::uint32_t>(scale) - 1u);
}

// 1 / scale, or 0 where the scale says all about its block.
constexpr float inverse_of(float scale) noexcept { return is_finite(scale) && scale > 0 ? 1.0f / scale : 0.0f; }

// quantize()'s code of one value.
constexpr std::uint32_t integer_code(int bits, float value, float inverse_scale) noexcept {
  // Adding 1.5 * 2^23 leaves the rounded integer in the low bits of the sum.
  constexpr float kMagic = 12582912.0f;
  const float sum = value * inverse_scale + kMagic;
  return std::bit_cast<std::uint32_t>(sum) - std::bit_cast<std::uint32_t>(kMagic) + (1u << (bits - 1));
}

// quantize_stochastic()'s code of one value; `number` is the value's random number.
constexpr std::uint32_t integer_code_stochastic(int bits, float value, float inverse_scale,
                                                std::uint32_t number) noexcept {
  const int levels = (1 << (bits - 1)) - 1;
  const float sum = value * inverse_scale + static_cast<float>(number >> 8) * 0x1p-24f;
  const int towards_zero = static_cast<int>(sum);
  const int floor = towards_zero - (static_cast<float>(towards_zero) > sum ? 1 : 0);
  const int code = floor < -levels ? -levels : floor > levels ? levels : floor;
  return static_cast<std::uint32_t>(code + levels + 1);
}

// dequantize()'s value of one code.
constexpr float integer_value(int bits, std::uint32_t code, float scale) noexcept {
  return static_cast<float>(static_cast<int>(code) - (1 << (bits - 1))) * scale;
}

// The two formats of 8 bits.
struct Fp8Kind {
  Fp8Layout layout;
  float largest;  // the largest finite number
};
inline constexpr Fp8Kind kFp8E4m3{{3, 7, 0x7f, 0x7f}, 448.0f};  // infinity becomes NaN
inline constexpr Fp8Kind kFp8E5m2{{2, 15, 0x7c, 0x7e}, 57344.0f};

// What encoding fp8 needs, as the bits of f32.
struct Fp8Bits {
  constexpr explicit Fp8Bits(const Fp8Layout& layout) noexcept
      : dropped(23 - layout.mantissa_bits),
        smallest_normal(static_cast<std::uint32_t>(128 - layout.bias) << 23),
        rebias(static_cast<std::uint32_t>(127 - layout.bias) << 23),
        below_half((1u << (dropped - 1)) - 1u),
        magic(static_cast<std::uint32_t>(128 - layout.bias + dropped) << 23) {}

  int dropped;                    // bits of the mantissa
  std::uint32_t smallest_normal;  // of the format
  std::uint32_t rebias;           // taken off the exponent
  std::uint32_t below_half;       // of the last place that is kept, with the last place added: rounds to nearest even
  // Added to a number whose unit in the last place is the format's smallest number, a small one is rounded to a count
  // of that.
  std::uint32_t magic;
};

// encode_fp8()'s code of one value that is scaled already.
constexpr std::uint32_t fp8_code(const Fp8Layout& layout, float scaled) noexcept {
  const Fp8Bits constants(layout);
  const std::uint32_t magnitude = magnitude_bits_of(scaled);
  std::uint32_t code = 0;
  if (magnitude > kInfinityBits) {
    code = layout.nan;
  } else if (magnitude == kInfinityBits) {
    code = layout.infinity;
  } else if (magnitude < constants.smallest_normal) {
    const float sum = std::bit_cast<float>(magnitude) + std::bit_cast<float>(constants.magic);
    code = std::bit_cast<std::uint32_t>(sum) - constants.magic;
  } else {
    const std::uint32_t last = (magnitude >> constants.dropped) & 1u;
    code = (magnitude - constants.rebias + constants.below_half + last) >> constants.dropped;
  }
  return code | std::bit_cast<std::uint32_t>(scaled) >> 31 << 7;
}

// The value of a code. A code is an f32 with a narrower exponent, but for its own rules about the highest one: the
// codes above the largest finite one are NaN, except for a code of infinity where the format has one.
constexpr float fp8_value(const Fp8Layout& layout, std::uint32_t code) noexcept {
  const Fp8Bits constants(layout);
  const std::uint32_t magnitude = code & 0x7fu;
  std::uint32_t bits = 0;
  if (magnitude >= layout.infinity) {
    const bool is_infinity = magnitude == layout.infinity && layout.infinity != layout.nan;
    bits = is_infinity ? kInfinityBits : 0x7fc00000u;
  } else if (magnitude >> layout.mantissa_bits != 0) {
    bits = (magnitude << constants.dropped) + constants.rebias;
  } else {
    const float smallest =
        std::bit_cast<float>(constants.smallest_normal - (static_cast<std::uint32_t>(layout.mantissa_bits) << 23));
    bits = std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * smallest);
  }
  return std::bit_cast<float>(bits | (code & 0x80u) << 24);
}

// The exponent of the scale of a block whose largest finite magnitude is `largest`, in a format whose largest number
// is `format_largest`: the smallest power of two with which the block fits into the format, within f32's normal ones.
constexpr int fp8_exponent(float largest, float format_largest) noexcept {
  constexpr std::uint32_t kMantissa = (1u << 23) - 1u;
  const std::uint32_t bits = magnitude_bits_of(largest);
  const auto limit = std::bit_cast<std::uint32_t>(format_largest);
  if (bits == 0) return 0;
  const int wanted = static_cast<int>(bits >> 23) - static_cast<int>(limit >> 23);
  const int exponent = wanted + ((bits & kMantissa) > (limit & kMantissa) ? 1 : 0);
  return exponent < -126 ? -126 : exponent > 127 ? 127 : exponent;
}

// 2 to the power of `exponent`, which is from -126 to 127.
constexpr float power_of_two(int exponent) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
}

// The two factors of encode_fp8() for a scale of 2^exponent: the reciprocal of a large scale is a denormal and that of
// a small one overflows.
struct Fp8Factors {
  constexpr explicit Fp8Factors(int exponent) noexcept
      : first(power_of_two(-exponent / 2)), second(power_of_two(-exponent - -exponent / 2)) {}
  float first;
  float second;
};

}  // namespace gradwire::kernels

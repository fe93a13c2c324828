// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The loops of lossy codecs: find a scale, map f32 to few bits and back, pick the large ones.
//
// All functions are noexcept and thread-safe, and take any alignment and any count from 0. Bits do not depend on the
// kernel.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gradwire/kernels/philox.h"

namespace gradwire::kernels {

// Returns the largest |x|. Returns NaN when an input is NaN, else infinity when an input is infinite; 0 for no input.
float max_magnitude(const float* source, std::size_t count) noexcept;

// The sum of all |x|, as 16 interleaved partial sums (x0 + x16 + ..., x1 + x17 + ..., ...) that are then added in
// halves: 8 to 8, 4 to 4, 2 to 2, 1 to 1. NaN and infinity show in the result.
float sum_magnitudes(const float* source, std::size_t count) noexcept;

// Codes of `bits` = 8, 4 or 2 bits: round(x * inverse_scale), to nearest even, plus 2^(bits - 1). |x * inverse_scale|
// must be below 2^(bits - 1) - 0.5. Codes are packed from the low bits of a byte upwards; unused bits of the last byte
// are 0. Writes ceil(count * bits / 8) bytes.
void quantize(int bits, const float* source, std::size_t count, float inverse_scale, std::uint8_t* codes) noexcept;

// quantize() with stochastic rounding: floor(x * inverse_scale + u), at least -L and at most L = 2^(bits - 1) - 1, plus
// 2^(bits - 1). For value i, u = (number first + i of the sequence of `key`, philox.h) / 2^8 rounded down, / 2^24: in
// [0, 1). `first` is a multiple of 4. |x * inverse_scale| must be below 2^30.
void quantize_stochastic(int bits, const float* source, std::size_t count, float inverse_scale, const PhiloxKey& key,
                         std::uint64_t first, std::uint8_t* codes) noexcept;

// The inverse of quantize(): (code - 2^(bits - 1)) * scale for any code.
void dequantize(int bits, const std::uint8_t* codes, std::size_t count, float scale, float* destination) noexcept;

// Packs codes that lie one a byte, in the form that quantize() writes. Codes must be below 2^bits.
void pack_codes(int bits, const std::uint8_t* bytes, std::size_t count, std::uint8_t* codes) noexcept;

// A float of 8 bits: sign, exponent, `mantissa_bits`; IEEE-like but for the codes of infinity and NaN.
struct Fp8Layout {
  int mantissa_bits;
  int bias;               // of the exponent
  std::uint8_t infinity;  // the positive code
  std::uint8_t nan;
};

// codes[i] = x * first_factor * second_factor, rounded to nearest even. A finite product must not exceed the largest
// number of the format after rounding. There are two factors because the reciprocal of a scale may not be a normal f32.
void encode_fp8(const Fp8Layout& layout, const float* source, std::size_t count, float first_factor,
                float second_factor, std::uint8_t* codes) noexcept;

// One bit a value, 1 for negative (the sign bit: -0 counts as negative), from the low bit of a byte upwards; unused
// bits of the last byte are 0. Writes ceil(count / 8) bytes.
void pack_signs(const float* source, std::size_t count, std::uint8_t* bits) noexcept;

// scale where the bit is 0, -scale where it is 1.
void unpack_signs(const std::uint8_t* bits, std::size_t count, float scale, float* destination) noexcept;

// Appends the index (plus `first_index`) and the value of each x whose magnitude, compared as the bits of |x|, is at
// least `least` (a NaN's bits are above every number's). Returns how many; indices ascend. `indices` and `values` need
// room for that many and kSelectSlack more.
std::size_t select_large(const float* source, std::size_t count, std::uint32_t least, std::uint32_t first_index,
                         std::uint32_t* indices, float* values) noexcept;

inline constexpr std::size_t kSelectSlack = 64;  // elements that select_large() may write beyond its result

}  // namespace gradwire::kernels

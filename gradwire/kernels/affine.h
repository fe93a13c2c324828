// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Affine quantization of f32 to bytes, and the average of several quantized arrays: the loops of the quantization
// hooks.
//
// All functions are noexcept and thread-safe, and take any alignment and any count from 0. Bits do not depend on the
// kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace gradwire::kernels {

// Maps a code to a number: scale * (code - zero_point). zero_point is a whole number from 0 to 255.
struct AffineScale {
  float scale = 1;
  float zero_point = 0;
};

// The scale at which the codes 0 to 255 cover `source` and 0: with low = min(source, 0) and high = max(source, 0),
//   scale = (high - low) / 255, at least 2^-126;   zero_point = -round(low / scale), half to even, within 0 to 255.
// Finite and positive for finite input, however small or large; a NaN and 0 when an input is infinite or a NaN.
AffineScale affine_scale(const float* source, std::size_t count) noexcept;

// codes[i] = round(source[i] / scale) + zero_point, half to even, clamped to 0 and 255. For values within the range
// that `affine` covers, the error is at most half a unit. The code of a quotient that is NaN is 0; when the scale is
// NaN, all codes are 0.
void quantize_affine(const float* source, std::size_t count, AffineScale affine, std::uint8_t* codes) noexcept;

// `count` codes of one rank.
struct AffineCodes {
  const std::uint8_t* codes;
  AffineScale affine;  // how a code becomes a value
};

// destination[i] = (the sum of scale * (code - zero_point) over `parts`, in their order, from 0) / divisor.
void average_affine(std::span<const AffineCodes> parts, std::size_t count, float divisor, float* destination) noexcept;

}  // namespace gradwire::kernels

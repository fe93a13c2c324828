// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The loops behind affine.h for one instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "gradwire/kernels/affine.h"

namespace gradwire::kernels {

// The smallest and largest of some values and 0. `poison` is 0, but a NaN when one of them is infinite or a NaN; then
// low and high mean nothing.
struct ValueRange {
  float low = 0;
  float high = 0;
  float poison = 0;
};

// quantize() adds 1.5 * 2^23 to a quotient, which leaves the rounded integer in the low bits of the sum. Of quotients
// from 2^22 on it does not, so the bits themselves are clamped: as integers they are in the order of the sums, and
// those of negative sums come before all others.
inline constexpr float kRoundingMagic = 12582912.0f;
inline constexpr float kInfiniteSum = std::numeric_limits<float>::infinity();  // beyond it are the positive NaNs

// Functions of one instruction set. quantize() may assume a scale that is no NaN.
struct AffineLoops {
  ValueRange (*find_range)(const float*, std::size_t) noexcept;
  void (*quantize)(const float*, std::size_t, AffineScale, std::uint8_t*) noexcept;
  // Elements [begin, end) of all parts.
  void (*average)(std::span<const AffineCodes>, std::size_t begin, std::size_t end, float divisor, float*) noexcept;
};

const AffineLoops& affine_loops_scalar() noexcept;

// The vector loops of one Highway target, null where this build has none.
const AffineLoops* find_affine_loops(std::int64_t target) noexcept;

}  // namespace gradwire::kernels

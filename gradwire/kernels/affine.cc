// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The choice of scales, and the reference of affine.h's loops.
#include "gradwire/kernels/affine.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "gradwire/kernels/affine_internal.h"
#include "gradwire/kernels/dispatch_internal.h"
#include "gradwire/kernels/element_internal.h"

namespace gradwire::kernels {
namespace {

constexpr float kLargestCode = 255;

namespace scalar {

ValueRange find_range(const float* source, std::size_t count) noexcept {
  ValueRange range;
  for (std::size_t i = 0; i < count; ++i) {
    const auto value = load_element<float>(source, i);
    range.low = std::min(range.low, value);
    range.high = std::max(range.high, value);
    range.poison += value * 0.0f;
  }
  return range;
}

void quantize(const float* source, std::size_t count, AffineScale affine, std::uint8_t* codes) noexcept {
  // The bits of the sum whose code is 0.
  const int zero = std::bit_cast<int>(kRoundingMagic) - static_cast<int>(affine.zero_point);
  for (std::size_t i = 0; i < count; ++i) {
    const int bits = std::bit_cast<int>(load_element<float>(source, i) / affine.scale + kRoundingMagic);
    const int number = bits > std::bit_cast<int>(kInfiniteSum) ? 0 : bits;
    codes[i] = static_cast<std::uint8_t>(std::clamp(number, zero, zero + 255) - zero);
  }
}

void average(std::span<const AffineCodes> parts, std::size_t begin, std::size_t end, float divisor,
             float* destination) noexcept {
  for (std::size_t i = begin; i < end; ++i) {
    float sum = 0;
    for (const AffineCodes& part : parts) {
      sum += part.affine.scale * (static_cast<float>(part.codes[i]) - part.affine.zero_point);
    }
    store_element(destination, i, sum / divisor);
  }
}

}  // namespace scalar
}  // namespace

AffineScale affine_scale(const float* source, std::size_t count) noexcept {
  const ValueRange range = active().affine->find_range(source, count);
  if (std::isnan(range.poison)) return {std::numeric_limits<float>::quiet_NaN(), 0};
  float scale = (range.high - range.low) / kLargestCode;
  // The range of +-max does not fit into an f32, its 255th part does.
  if (std::isinf(scale)) scale = static_cast<float>((double{range.high} - double{range.low}) / double{kLargestCode});
  // A quotient by a denormal number is neither exact nor fast.
  scale = std::max(scale, std::numeric_limits<float>::min());
  return {scale, std::clamp(-std::nearbyint(range.low / scale), 0.0f, kLargestCode) + 0.0f};
}

void quantize_affine(const float* source, std::size_t count, AffineScale affine, std::uint8_t* codes) noexcept {
  if (std::isnan(affine.scale)) {
    std::fill_n(codes, count, std::uint8_t{0});
  } else {
    active().affine->quantize(source, count, affine, codes);
  }
}

void average_affine(std::span<const AffineCodes> parts, std::size_t count, float divisor, float* destination) noexcept {
  active().affine->average(parts, 0, count, divisor, destination);
}

const AffineLoops& affine_loops_scalar() noexcept {
  static constexpr AffineLoops kLoops{&scalar::find_range, &scalar::quantize, &scalar::average};
  return kLoops;
}

}  // namespace gradwire::kernels

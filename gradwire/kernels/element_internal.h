// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Elements one at a time, in plain C++: the meaning that every vector loop has to match bit for bit.
//
// f16 and bf16 are handled as their bits (std::uint16_t); arithmetic on them happens in f32.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace gradwire::kernels {

// One element at `index` of an array that may have any alignment.
template <class T>
T load_element(const void* array, std::size_t index) noexcept {
  T value;
  std::memcpy(&value, static_cast<const unsigned char*>(array) + index * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void store_element(void* array, std::size_t index, T value) noexcept {
  std::memcpy(static_cast<unsigned char*>(array) + index * sizeof(T), &value, sizeof(T));
}

// bfloat16 is the upper half of a binary32, so widening is exact.
constexpr float bf16_to_f32(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

// Rounds to nearest even; every NaN becomes 0x7fc0.
constexpr std::uint16_t f32_to_bf16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0u;
  // Adding just under half a unit, and the last kept bit for ties, carries into the kept half exactly when it has to
  // round up.
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// Exact; a signalling NaN becomes quiet, as the processor's own conversion has it.
constexpr float f16_to_f32(std::uint16_t half) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00u) {
    const std::uint32_t quiet = magnitude > 0x7c00u ? 0x00400000u : 0u;
    return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13 | quiet);
  }
  if (magnitude >= 0x0400u) return std::bit_cast<float>(sign | ((magnitude << 13) + (112u << 23)));
  const float scaled = static_cast<float>(magnitude) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(scaled));
}

// Rounds to nearest even; overflow gives infinity, denormals are kept, a NaN keeps its sign and upper payload and is
// quiet.
constexpr std::uint16_t f32_to_f16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  std::uint32_t half = 0;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  } else if (magnitude >= 0x47800000u) {  // 65536 and up; what lies between 65520 and 65536 carries into infinity below
    half = 0x7c00u;
  } else if (magnitude >= 0x38800000u) {  // 2^-14, the smallest normal number
    half = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  } else {
    // The unit in the last place of 0.5f is 2^-24, that of a denormal f16: the addition rounds, and the low bits are
    // the result.
    half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  }
  return static_cast<std::uint16_t>(sign | half);
}

// f64 to f32, rounded to odd: the last bit is set when the result is inexact, so that a second rounding to a type at
// least two bits narrower gives what one rounding would have given.
inline float f64_to_f32_odd(double value) noexcept {
  const auto nearest = static_cast<float>(value);
  const auto bits = std::bit_cast<std::uint32_t>(nearest);
  const double back = static_cast<double>(nearest);
  if (back == value || value != value || (bits & 1u) != 0) return nearest;
  // Inexact and even: the odd neighbour towards `value`. Infinity after overflow steps back to the largest finite
  // number.
  const bool rounded_away = (value < 0 ? -back : back) > (value < 0 ? -value : value);
  return std::bit_cast<float>(rounded_away ? bits - 1u : bits + 1u);
}

}  // namespace gradwire::kernels

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The loops behind quantize.h for one instruction set, and the reference that they end their tails with.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "gradwire/kernels/quantize.h"
#include "gradwire/kernels/value_internal.h"

namespace gradwire::kernels {

// Functions of one instruction set, with the contracts of quantize.h.
struct QuantizeLoops {
  float (*max_magnitude)(const float*, std::size_t) noexcept;
  float (*sum_magnitudes)(const float*, std::size_t) noexcept;
  // One code a byte, not packed.
  void (*to_codes)(int bits, const float*, std::size_t, float inverse_scale, std::uint8_t* bytes) noexcept;
  void (*to_codes_stochastic)(int bits, const float*, std::size_t, float inverse_scale, const PhiloxKey& key,
                              std::uint64_t first, std::uint8_t* bytes) noexcept;
  void (*from_codes)(int bits, const std::uint8_t* bytes, std::size_t, float scale, float*) noexcept;
  // Whole groups of 8 codes; `bits` is 4 or 2.
  void (*pack)(int bits, const std::uint8_t* bytes, std::size_t groups, std::uint8_t* codes) noexcept;
  void (*unpack)(int bits, const std::uint8_t* codes, std::size_t groups, std::uint8_t* bytes) noexcept;
  void (*encode_fp8)(const Fp8Layout&, const float*, std::size_t, float first_factor, float second_factor,
                     std::uint8_t* codes) noexcept;
  void (*pack_signs)(const float*, std::size_t, std::uint8_t*) noexcept;
  void (*unpack_signs)(const std::uint8_t*, std::size_t, float scale, float*) noexcept;
  std::size_t (*select_large)(const float*, std::size_t, std::uint32_t least, std::uint32_t first_index, std::uint32_t*,
                              float*) noexcept;
};

const QuantizeLoops& quantize_loops_scalar() noexcept;

// The vector loops of one Highway target, null where this build has none.
const QuantizeLoops* find_quantize_loops(std::int64_t target) noexcept;

inline constexpr std::size_t kPartialSums = 16;

// Adds `count` more |x|, the first of which belongs to partial sum 0, and adds up the partial sums.
float finish_sum(float (&partial)[kPartialSums], const float* source, std::size_t count) noexcept;

// pack and unpack as plain loops, which compilers turn into vectors of whatever target they are inlined into. Eight
// bytes with one code each are a 64-bit word; halves of it are moved together until the codes are next to each other.
[[gnu::always_inline]] inline std::uint64_t squeeze4(std::uint64_t word) noexcept {
  word = (word | word >> 4) & 0x00ff00ff00ff00ffu;
  word = (word | word >> 8) & 0x0000ffff0000ffffu;
  return (word | word >> 16) & 0x00000000ffffffffu;
}
[[gnu::always_inline]] inline std::uint64_t squeeze2(std::uint64_t word) noexcept {
  word = (word | word >> 6) & 0x000f000f000f000fu;
  word = (word | word >> 12) & 0x000000ff000000ffu;
  return (word | word >> 24) & 0x000000000000ffffu;
}
[[gnu::always_inline]] inline std::uint64_t spread4(std::uint64_t word) noexcept {
  word = (word | word << 16) & 0x0000ffff0000ffffu;
  word = (word | word << 8) & 0x00ff00ff00ff00ffu;
  return (word | word << 4) & 0x0f0f0f0f0f0f0f0fu;
}
[[gnu::always_inline]] inline std::uint64_t spread2(std::uint64_t word) noexcept {
  word = (word | word << 24) & 0x000000ff000000ffu;
  word = (word | word << 12) & 0x000f000f000f000fu;
  return (word | word << 6) & 0x0303030303030303u;
}

}  // namespace gradwire::kernels

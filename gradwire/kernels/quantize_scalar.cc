// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The reference of quantize.h's loops.
#include <algorithm>
#include <bit>

#include "gradwire/kernels/dispatch_internal.h"
#include "gradwire/kernels/element_internal.h"
#include "gradwire/kernels/quantize_internal.h"

namespace gradwire::kernels {
namespace {
namespace scalar {  // the names are those of quantize.h

std::uint32_t magnitude_bits(const float* source, std::size_t index) noexcept {
  return load_element<std::uint32_t>(source, index) & 0x7fffffffu;
}

float max_magnitude(const float* source, std::size_t count) noexcept {
  // The bits of non-negative floats are in the order of their values, infinity and NaN last.
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < count; ++i) largest = std::max(largest, magnitude_bits(source, i));
  return std::bit_cast<float>(largest);
}

float sum_magnitudes(const float* source, std::size_t count) noexcept {
  float partial[kPartialSums] = {};
  return finish_sum(partial, source, count);
}

void to_codes(int bits, const float* source, std::size_t count, float inverse_scale, std::uint8_t* bytes) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    bytes[i] = static_cast<std::uint8_t>(integer_code(bits, load_element<float>(source, i), inverse_scale));
  }
}

void to_codes_stochastic(int bits, const float* source, std::size_t count, float inverse_scale, const PhiloxKey& key,
                         std::uint64_t first, std::uint8_t* bytes) noexcept {
  PhiloxBlock numbers{};
  for (std::size_t i = 0; i < count; ++i) {
    if (i % 4 == 0) numbers = philox_block(key, (first + i) / 4);
    bytes[i] = static_cast<std::uint8_t>(
        integer_code_stochastic(bits, load_element<float>(source, i), inverse_scale, numbers[i % 4]));
  }
}

void from_codes(int bits, const std::uint8_t* bytes, std::size_t count, float scale, float* destination) noexcept {
  for (std::size_t i = 0; i < count; ++i) store_element(destination, i, integer_value(bits, bytes[i], scale));
}

void pack(int bits, const std::uint8_t* bytes, std::size_t groups, std::uint8_t* codes) noexcept {
  for (std::size_t group = 0; group < groups; ++group) {
    const auto word = load_element<std::uint64_t>(bytes, group);
    if (bits == 4) {
      store_element(codes, group, static_cast<std::uint32_t>(squeeze4(word)));
    } else {
      store_element(codes, group, static_cast<std::uint16_t>(squeeze2(word)));
    }
  }
}

void unpack(int bits, const std::uint8_t* codes, std::size_t groups, std::uint8_t* bytes) noexcept {
  for (std::size_t group = 0; group < groups; ++group) {
    const std::uint64_t word = bits == 4 ? spread4(load_element<std::uint32_t>(codes, group))
                                         : spread2(load_element<std::uint16_t>(codes, group));
    store_element(bytes, group, word);
  }
}

void encode_fp8(const Fp8Layout& layout, const float* source, std::size_t count, float first_factor,
                float second_factor, std::uint8_t* codes) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    codes[i] =
        static_cast<std::uint8_t>(fp8_code(layout, load_element<float>(source, i) * first_factor * second_factor));
  }
}

void pack_signs(const float* source, std::size_t count, std::uint8_t* bits) noexcept {
  for (std::size_t i = 0; i < count; i += 8) {
    unsigned byte = 0;
    for (std::size_t j = 0; j < std::min<std::size_t>(8, count - i); ++j) {
      byte |= (load_element<std::uint32_t>(source, i + j) >> 31) << j;
    }
    bits[i / 8] = static_cast<std::uint8_t>(byte);
  }
}

void unpack_signs(const std::uint8_t* bits, std::size_t count, float scale, float* destination) noexcept {
  const auto magnitude = std::bit_cast<std::uint32_t>(scale);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t negative = (bits[i / 8] >> (i % 8)) & 1u;
    store_element(destination, i, magnitude ^ negative << 31);
  }
}

std::size_t select_large(const float* source, std::size_t count, std::uint32_t least, std::uint32_t first_index,
                         std::uint32_t* indices, float* values) noexcept {
  std::size_t found = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (magnitude_bits(source, i) < least) continue;
    store_element(indices, found, first_index + static_cast<std::uint32_t>(i));
    store_element(values, found, load_element<float>(source, i));
    ++found;
  }
  return found;
}

}  // namespace scalar
}  // namespace

float finish_sum(float (&partial)[kPartialSums], const float* source, std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; ++i)
    partial[i % kPartialSums] += std::bit_cast<float>(scalar::magnitude_bits(source, i));
  for (std::size_t half = kPartialSums / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) partial[i] += partial[i + half];
  }
  return partial[0];
}

const QuantizeLoops& quantize_loops_scalar() noexcept {
  static constexpr QuantizeLoops kLoops{
      &scalar::max_magnitude, &scalar::sum_magnitudes, &scalar::to_codes,    &scalar::to_codes_stochastic,
      &scalar::from_codes,    &scalar::pack,           &scalar::unpack,      &scalar::encode_fp8,
      &scalar::pack_signs,    &scalar::unpack_signs,   &scalar::select_large};
  return kLoops;
}

}  // namespace gradwire::kernels

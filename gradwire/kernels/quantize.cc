// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Cuts quantization into pieces that stay in the first-level cache between the conversion and the packing.
#include "gradwire/kernels/quantize.h"

#include <algorithm>

#include "gradwire/kernels/dispatch_internal.h"
#include "gradwire/kernels/quantize_internal.h"

namespace gradwire::kernels {
namespace {

constexpr std::size_t kPiece = 2048;  // codes, one a byte; a multiple of 8

const QuantizeLoops& loops() noexcept { return *active().quantize; }

std::size_t packed_size(int bits, std::size_t count) noexcept {
  return (count * static_cast<std::size_t>(bits) + 7) / 8;
}

}  // namespace

float max_magnitude(const float* source, std::size_t count) noexcept { return loops().max_magnitude(source, count); }

float sum_magnitudes(const float* source, std::size_t count) noexcept { return loops().sum_magnitudes(source, count); }

void pack_codes(int bits, const std::uint8_t* bytes, std::size_t count, std::uint8_t* codes) noexcept {
  if (bits == 8) {
    std::copy_n(bytes, count, codes);
    return;
  }
  const std::size_t groups = count / 8;
  loops().pack(bits, bytes, groups, codes);
  if (count % 8 == 0) return;
  // The last group, filled up with zeros, in a copy: neither side reaches beyond its end.
  std::uint8_t last[8] = {};
  std::uint8_t packed[8] = {};
  std::copy_n(bytes + 8 * groups, count % 8, last);
  loops().pack(bits, last, 1, packed);
  std::copy_n(packed, packed_size(bits, count % 8), codes + packed_size(bits, 8 * groups));
}

void quantize(int bits, const float* source, std::size_t count, float inverse_scale, std::uint8_t* codes) noexcept {
  if (bits == 8) return loops().to_codes(bits, source, count, inverse_scale, codes);
  std::uint8_t piece[kPiece];
  for (std::size_t i = 0; i < count; i += kPiece) {
    const std::size_t length = std::min(kPiece, count - i);
    loops().to_codes(bits, source + i, length, inverse_scale, piece);
    pack_codes(bits, piece, length, codes + packed_size(bits, i));
  }
}

void quantize_stochastic(int bits, const float* source, std::size_t count, float inverse_scale, const PhiloxKey& key,
                         std::uint64_t first, std::uint8_t* codes) noexcept {
  if (bits == 8) return loops().to_codes_stochastic(bits, source, count, inverse_scale, key, first, codes);
  std::uint8_t piece[kPiece];
  for (std::size_t i = 0; i < count; i += kPiece) {
    const std::size_t length = std::min(kPiece, count - i);
    loops().to_codes_stochastic(bits, source + i, length, inverse_scale, key, first + i, piece);
    pack_codes(bits, piece, length, codes + packed_size(bits, i));
  }
}

void dequantize(int bits, const std::uint8_t* codes, std::size_t count, float scale, float* destination) noexcept {
  if (bits == 8) return loops().from_codes(bits, codes, count, scale, destination);
  std::uint8_t piece[kPiece];
  for (std::size_t i = 0; i < count; i += kPiece) {
    const std::size_t length = std::min(kPiece, count - i);
    const std::uint8_t* from = codes + packed_size(bits, i);
    const std::size_t groups = length / 8;
    loops().unpack(bits, from, groups, piece);
    if (length % 8 != 0) {
      std::uint8_t packed[8] = {};
      std::copy_n(from + packed_size(bits, 8 * groups), packed_size(bits, length % 8), packed);
      loops().unpack(bits, packed, 1, piece + 8 * groups);
    }
    loops().from_codes(bits, piece, length, scale, destination + i);
  }
}

void encode_fp8(const Fp8Layout& layout, const float* source, std::size_t count, float first_factor,
                float second_factor, std::uint8_t* codes) noexcept {
  loops().encode_fp8(layout, source, count, first_factor, second_factor, codes);
}

void pack_signs(const float* source, std::size_t count, std::uint8_t* bits) noexcept {
  loops().pack_signs(source, count, bits);
}

void unpack_signs(const std::uint8_t* bits, std::size_t count, float scale, float* destination) noexcept {
  loops().unpack_signs(bits, count, scale, destination);
}

std::size_t select_large(const float* source, std::size_t count, std::uint32_t least, std::uint32_t first_index,
                         std::uint32_t* indices, float* values) noexcept {
  return loops().select_large(source, count, least, first_index, indices, values);
}

}  // namespace gradwire::kernels

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The bytes of codecs that send some of the values with their indices: pairs of a u32 index and an f32 value, in
// ascending order of index.
#pragma once

#include "gradwire/compress/codec_internal.h"

namespace gradwire::compress {

inline constexpr std::size_t kPairSize = 8;

// Writes pair number `at`.
inline void write_pair(std::byte* bytes, std::size_t at, std::uint32_t index, float value) noexcept {
  write_as(bytes + kPairSize * at, index);
  write_as(bytes + kPairSize * at + 4, value);
}

// Writes the k values of largest magnitude as k pairs (top_k_codec.h says how ties go); k is at most values.size().
void encode_largest(std::span<const float> values, std::size_t k, std::byte* bytes);

// Zeros everywhere but at the pairs' indices. Throws MismatchError unless `bytes` are pairs with ascending indices
// below values.size().
void decode_pairs(const Codec& codec, std::span<const std::byte> bytes, std::span<float> values);

}  // namespace gradwire::compress

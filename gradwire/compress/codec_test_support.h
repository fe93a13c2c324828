// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// For the tests of codecs: values, and what is left of them after a trip through a codec.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "gradwire/compress/codec.h"

namespace gradwire::compress::codec_test_support {

inline std::vector<float> normal_values(std::size_t count, std::uint32_t seed, float scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

inline std::vector<std::byte> encode(const Codec& codec, const std::vector<float>& values, const EncodeKey& key = {}) {
  std::vector<std::byte> bytes(codec.max_encoded_size(values.size()));
  bytes.resize(codec.encode(values, key, bytes));
  return bytes;
}

// A value that the codec leaves is 12345.
inline std::vector<float> decode(const Codec& codec, const std::vector<std::byte>& bytes, std::size_t count,
                                 const EncodeKey& key = {}) {
  std::vector<float> values(count, 12345.0f);
  codec.decode(bytes, key, values);
  return values;
}

inline std::vector<float> round_trip(const Codec& codec, const std::vector<float>& values, const EncodeKey& key = {}) {
  return decode(codec, encode(codec, values, key), values.size(), key);
}

}  // namespace gradwire::compress::codec_test_support

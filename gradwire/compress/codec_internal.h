// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The checks that all codecs make, and what codecs have in common.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/compress/codec.h"

namespace gradwire::compress {

// Throws InvalidArgument unless an encoding of `count` values fits.
inline void require_room(const Codec& codec, std::size_t count, std::size_t room, std::uint64_t step = 0) {
  const std::size_t needed = codec.encoded_size(count, step);
  if (room >= needed) return;
  throw InvalidArgument(concat("codec ", codec.name(), ": encoding ", count, " values needs ", needed,
                               " bytes of room, there are ", room, "; allocate encoded_size()"));
}

// Throws MismatchError: `bytes` are no encoding of `count` values.
[[noreturn]] inline void refuse_bytes(const Codec& codec, std::size_t count, std::size_t bytes, const char* reason) {
  throw MismatchError(concat("codec ", codec.name(), ": ", bytes, " bytes are no encoding of ", count,
                             " values: ", reason, "; do all ranks use the same codec with the same options?"));
}

inline void require_size(const Codec& codec, std::size_t count, std::size_t bytes, std::uint64_t step = 0) {
  const std::size_t expected = codec.encoded_size(count, step);
  if (bytes != expected) refuse_bytes(codec, count, bytes, concat("it has ", expected, " bytes").c_str());
}

// Indices travel as 32 bits.
inline void require_numbered(const Codec& codec, std::size_t count) {
  if (count <= std::numeric_limits<std::uint32_t>::max()) return;
  throw InvalidArgument(concat("codec ", codec.name(), ": ", count,
                               " values are more than 32-bit indices can number; use smaller buckets"));
}

template <class T>
T read_as(const std::byte* from) noexcept {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}
template <class T>
void write_as(std::byte* to, T value) noexcept {
  std::memcpy(to, &value, sizeof(T));
}

inline std::uint8_t* as_codes(std::byte* bytes) noexcept { return reinterpret_cast<std::uint8_t*>(bytes); }
inline const std::uint8_t* as_codes(const std::byte* bytes) noexcept {
  return reinterpret_cast<const std::uint8_t*>(bytes);
}

// ceil(ratio count), from 1 to count; 0 of none. For a ratio in (0, 1].
inline std::size_t number_kept(double ratio, std::size_t count) noexcept {
  if (count == 0) return 0;
  const auto kept = static_cast<std::size_t>(std::ceil(ratio * static_cast<double>(count)));
  return std::clamp<std::size_t>(kept, 1, count);
}

constexpr std::size_t divide_up(std::size_t dividend, std::size_t divisor) noexcept {
  return dividend / divisor + (dividend % divisor != 0 ? 1 : 0);
}

// A codec that encodes a part as it encodes the whole. The size of an encoding is that of max_encoded_size().
class PartCodec : public Codec {
 public:
  bool is_fixed_size() const noexcept final { return true; }
  std::size_t encode(std::span<const float> values, const EncodeKey& key, std::span<std::byte> bytes) const final {
    return encode_part(values, 0, values.size(), key, bytes);
  }
  void decode(std::span<const std::byte> bytes, const EncodeKey& key, std::span<float> values) const final {
    decode_part(bytes, 0, values.size(), key, values);
  }
  // Not those of Codec, which go to encode() and decode().
  std::size_t encode_part(std::span<const float> values, std::size_t first, std::size_t whole, const EncodeKey& key,
                          std::span<std::byte> bytes) const override = 0;
  void decode_part(std::span<const std::byte> bytes, std::size_t first, std::size_t whole, const EncodeKey& key,
                   std::span<float> values) const override = 0;
};

}  // namespace gradwire::compress

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Codecs: they encode gradients in fewer bytes, and decode the bytes again.
//
// A codec has no state. The same values and the same EncodeKey give the same bytes, on any machine and with any kernel
// (except for the sign and payload of NaN). A memory (memory.h) keeps what an encoding lost, and an exchange
// (exchange.h) sends the bytes; any codec works with any memory and any exchange.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace gradwire::compress {

// Selects the random numbers of a call: keys that differ in any field draw independent ones. Codecs without random
// numbers ignore the key.
struct EncodeKey {
  std::uint64_t seed = 0;    // the seed of the run
  std::uint64_t tensor = 0;  // the tensor: any number, the same at every step
  std::uint64_t step = 0;    // the number of encodings of that tensor so far
  std::uint32_t rank = 0;    // makes ranks round independently; ignored where ranks must agree (random-k)
  std::uint32_t piece = 0;   // of a tensor that is encoded in pieces: which piece, from 0; below 2^32 - 1
};

// An immutable object. Threads: all methods may be called from several threads at once.
//
// Infinity and NaN survive: when one of the values is not finite, at least one of the decoded values is not finite. The
// header of each codec says which. (Top-k keeps this promise when it sends at least as many values as are not finite.)
class Codec {
 public:
  virtual ~Codec() = default;

  // The description from which make_codec() makes this codec, for example "int8:block=256".
  virtual std::string name() const = 0;

  // The largest size in bytes of an encoding of `count` values, at any step: the size of the buffer to allocate. The
  // header of each codec states the formula.
  virtual std::size_t max_encoded_size(std::size_t count) const noexcept = 0;
  // The largest size at one EncodeKey::step. Only a codec with a schedule (dgc) depends on the step.
  virtual std::size_t encoded_size(std::size_t count, std::uint64_t step) const noexcept {
    static_cast<void>(step);
    return max_encoded_size(count);
  }
  // True: encode() always writes exactly encoded_size() bytes.
  virtual bool is_fixed_size() const noexcept = 0;

  // True: decoded values have the scale of the encoded ones, so they can be added to values that were not encoded.
  // False for bare signs.
  virtual bool keeps_scale() const noexcept { return true; }

  // The number of values in a block, where the code of a value depends on the values of its block alone: a vector is a
  // row of blocks, the last of which may be shorter, and can be encoded in pieces. 0 where values compete for places
  // (top-k), or where one mark stands for all values.
  virtual std::size_t block() const noexcept { return 0; }

  // The codec for the mean of decoded values, in an exchange that encodes twice. This codec itself, except where
  // encoding twice would scale twice (unbiased random-k). This codec owns the returned one.
  virtual const Codec& for_means() const noexcept { return *this; }

  // Writes an encoding of `values` to the front of `bytes`; returns its size in bytes. `bytes` may have any alignment.
  // Throws InvalidArgument when `bytes` is smaller than encoded_size(values.size(), key.step), or when there are more
  // values than the codec can number.
  virtual std::size_t encode(std::span<const float> values, const EncodeKey& key, std::span<std::byte> bytes) const = 0;

  // Decodes `bytes` and overwrites all of `values`. The number of values and the key are those of encode(). `bytes` may
  // come from another rank and may hold anything: bytes that are not an encoding of that many values throw
  // MismatchError, and `values` are unspecified then. Never reads or writes beyond the spans.
  virtual void decode(std::span<const std::byte> bytes, const EncodeKey& key, std::span<float> values) const = 0;

  // encode() and decode() of a part of `whole` values: of values.size() values from number `first`. `bytes` is (the
  // room for) the encoding of all `whole` values; only the part's share of `bytes` is written or read. The encodings of
  // all parts together are the bytes that encode() writes. encode_part() returns the size of the whole encoding. A part
  // is a row of blocks: `first` is a multiple of block(), and so is first + values.size(), unless it is `whole`. A
  // codec without blocks has one part, all values.
  virtual std::size_t encode_part(std::span<const float> values, std::size_t first, std::size_t whole,
                                  const EncodeKey& key, std::span<std::byte> bytes) const {
    static_cast<void>(first);
    static_cast<void>(whole);
    return encode(values, key, bytes);
  }
  virtual void decode_part(std::span<const std::byte> bytes, std::size_t first, std::size_t whole, const EncodeKey& key,
                           std::span<float> values) const {
    static_cast<void>(first);
    static_cast<void>(whole);
    decode(bytes, key, values);
  }
};

}  // namespace gradwire::compress

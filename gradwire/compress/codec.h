// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What turns gradients into fewer bytes and back.
//
// A codec keeps no memory of what it compressed: the same values and the same EncodeKey give the same bytes, on any
// machine and with any kernels (sign and payload of NaN excepted). What was lost is the business of a memory, how bytes
// travel that of an exchange; any codec works with any of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace gradwire::compress {

// Which of many draws of random numbers a call gets. Codecs without randomness ignore it.
struct EncodeKey {
  std::uint64_t seed = 0;    // of the run
  std::uint64_t tensor = 0;  // which tensor: any number that stays with it
  std::uint64_t step = 0;    // counts the encodings of that tensor
  std::uint32_t rank = 0;    // makes ranks round independently; not looked at where ranks have to agree (random-k)
};

// An immutable object; all methods may be called by several threads at once.
//
// Values with an infinity or a NaN among them are not lost: each codec says in its header what decoding then gives, and
// at least one element of that is not finite. (For top-k: if as many as the non-finite ones are sent.)
class Codec {
 public:
  virtual ~Codec() = default;

  // What make_codec() would be given for it: "int8:block=256".
  virtual std::string name() const = 0;

  // The bytes that `count` values need at most, at any step; what a caller allocates. The header of each codec says the
  // formula.
  virtual std::size_t max_encoded_size(std::size_t count) const noexcept = 0;
  // The same for one EncodeKey::step. Only codecs with a schedule (dgc) look at the step.
  virtual std::size_t encoded_size(std::size_t count, std::uint64_t step) const noexcept {
    static_cast<void>(step);
    return max_encoded_size(count);
  }
  // Whether encode() always writes exactly encoded_size().
  virtual bool is_fixed_size() const noexcept = 0;

  // Whether decoded values are of the size of those that went in, so that they can be added to values that were not
  // encoded. Not so for bare signs.
  virtual bool keeps_scale() const noexcept { return true; }

  // Whether a value's code depends on no value outside its block (or on none but itself), so that a long vector may as
  // well be encoded in pieces. Not so where values compete for places (top-k).
  virtual bool codes_by_block() const noexcept { return false; }

  // The codec for a mean of decoded values, in an exchange that encodes twice: this one, but where coding twice would
  // scale twice (unbiased random-k). It lives as long as this one.
  virtual const Codec& for_means() const noexcept { return *this; }

  // Writes an encoding of `values` to the front of `bytes` and returns its size. Throws InvalidArgument when `bytes` is
  // smaller than encoded_size(values.size(), key.step), or `values` are more than the codec can number. No alignment is
  // asked for.
  virtual std::size_t encode(std::span<const float> values, const EncodeKey& key, std::span<std::byte> bytes) const = 0;

  // Overwrites all of `values` with what `bytes` say. The number of values and the key are those of encode(). `bytes`
  // may come from a peer and hold anything: when they are no encoding of that many values, this throws MismatchError
  // and `values` are unspecified; it never reads or writes beyond either span.
  virtual void decode(std::span<const std::byte> bytes, const EncodeKey& key, std::span<float> values) const = 0;
};

}  // namespace gradwire::compress

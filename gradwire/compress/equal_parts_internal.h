// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Encodings in parts of equal length, as an all-to-all sends them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "gradwire/compress/codec.h"

namespace gradwire::compress {

// How a buffer is divided into one part for each rank, each of which holds an encoding. A part is as long as the
// largest encoding. Where encodings have no fixed size, each part begins with the size of its encoding (u64).
class EqualParts final {
 public:
  // Parts for encodings of `longest` values at most. `codec` must outlive this object.
  EqualParts(const Codec& codec, std::uint64_t step, std::size_t longest, int ranks);

  // The bytes of all parts: the least size of the buffers below.
  std::size_t bytes() const noexcept { return static_cast<std::size_t>(ranks_) * stride_; }
  std::size_t bytes_of_one() const noexcept { return stride_; }
  bool hold_sizes() const noexcept { return header_ != 0; }
  // The bytes of an encoding for which a part has room.
  std::size_t largest_encoding() const noexcept { return stride_ - header_; }

  // The room for an encoding in part r of `buffer`.
  std::span<std::byte> room(std::span<std::byte> buffer, int r) const noexcept;
  // Writes the size of the encoding in part r, where parts hold sizes.
  void write_size(std::span<std::byte> buffer, int r, std::size_t size) const noexcept;
  // The encoding of `count` values in part r. Throws MismatchError when the part says a size that is too large.
  std::span<const std::byte> encoding(std::span<const std::byte> buffer, int r, std::size_t count) const;

  // Makes all parts shorter, for encodings of `largest` bytes at most, and moves the parts in `buffer` together. The
  // contents of part `unused` are lost.
  void shorten(std::span<std::byte> buffer, std::size_t largest, int unused) noexcept;

 private:
  std::size_t begin_of(int r) const noexcept { return static_cast<std::size_t>(r) * stride_; }

  const Codec& codec_;
  std::uint64_t step_;
  int ranks_;
  std::size_t header_;  // bytes of a size before each encoding
  std::size_t stride_;  // bytes of a part
};

}  // namespace gradwire::compress

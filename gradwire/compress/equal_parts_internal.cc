// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/compress/equal_parts_internal.h"

#include <cstring>

#include "gradwire/compress/exchange_internal.h"

namespace gradwire::compress {

EqualParts::EqualParts(const Codec& codec, std::uint64_t step, std::size_t longest, int ranks)
    : codec_(codec),
      step_(step),
      ranks_(ranks),
      header_(codec.is_fixed_size() ? 0 : kSizeBytes),
      stride_(header_ + codec.encoded_size(longest, step)) {}

std::span<std::byte> EqualParts::room(std::span<std::byte> buffer, int r) const noexcept {
  return buffer.subspan(begin_of(r) + header_, largest_encoding());
}

void EqualParts::write_size(std::span<std::byte> buffer, int r, std::size_t size) const noexcept {
  if (hold_sizes()) write_as(buffer.data() + begin_of(r), std::uint64_t{size});
}

std::span<const std::byte> EqualParts::encoding(std::span<const std::byte> buffer, int r, std::size_t count) const {
  const auto part = buffer.subspan(begin_of(r), stride_);
  if (!hold_sizes()) return part.first(codec_.encoded_size(count, step_));
  return part.subspan(header_, read_size(codec_, part.data(), largest_encoding()));
}

void EqualParts::shorten(std::span<std::byte> buffer, std::size_t largest, int unused) noexcept {
  const std::size_t shorter = header_ + largest;
  for (int r = 1; r < ranks_; ++r) {
    if (r == unused) continue;
    std::memmove(buffer.data() + static_cast<std::size_t>(r) * shorter, buffer.data() + begin_of(r), shorter);
  }
  stride_ = shorter;
}

}  // namespace gradwire::compress

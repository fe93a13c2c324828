// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/compress/sparse_internal.h"

#include <algorithm>

namespace gradwire::compress {

void decode_pairs(const Codec& codec, std::span<const std::byte> bytes, std::span<float> values) {
  if (bytes.size() % kPairSize != 0) refuse_bytes(codec, values.size(), bytes.size(), "they are no whole pairs");
  std::fill(values.begin(), values.end(), 0.0f);
  std::size_t lowest = 0;  // what the next index is at least
  for (std::size_t at = 0; at < bytes.size(); at += kPairSize) {
    const std::size_t index = read_as<std::uint32_t>(bytes.data() + at);
    if (index < lowest || index >= values.size()) {
      refuse_bytes(codec, values.size(), bytes.size(), "an index does not ascend or is too large");
    }
    values[index] = read_as<float>(bytes.data() + at + 4);
    lowest = index + 1;
  }
}

}  // namespace gradwire::compress

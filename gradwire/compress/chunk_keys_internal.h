// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The keys of the encodings of chunks.
#pragma once

#include <cstdint>

#include "gradwire/compress/codec.h"

namespace gradwire::compress {

// A chunk is a tensor of its own, and both of its encodings have keys of their own, so all ranks round independently.
class ChunkKeys final {
 public:
  // `key`: the key of all values; its rank is ignored.
  ChunkKeys(const EncodeKey& key, int ranks) noexcept : key_(key), ranks_(ranks) {}

  // The key of the values of `sender` in a chunk.
  EncodeKey of_values(int chunk, int sender) const noexcept { return key_of(chunk, sender); }
  // The key of the mean of a chunk, which the chunk's owner encodes.
  EncodeKey of_mean(int chunk) const noexcept { return key_of(chunk, ranks_ + chunk); }
  std::uint64_t step() const noexcept { return key_.step; }

 private:
  EncodeKey key_of(int chunk, int coder) const noexcept {
    EncodeKey key = key_;
    key.tensor = key.tensor * static_cast<std::uint64_t>(ranks_) + static_cast<std::uint64_t>(chunk);
    key.rank = static_cast<std::uint32_t>(coder);
    return key;
  }

  EncodeKey key_;
  int ranks_;
};

}  // namespace gradwire::compress

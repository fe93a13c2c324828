// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Random numbers by counter: Philox4x32-10 (J. Salmon, M. Moraes, R. Dror, D. Shaw: "Parallel random numbers: as easy
// as 1, 2, 3", SC 2011). The n-th number is a function of the key and n, so any part of a sequence can be had without
// the rest, and ranks that agree on the key agree on the numbers.
#pragma once

#include <array>
#include <cstdint>

#include "gradwire/compress/codec.h"

namespace gradwire::compress {

using PhiloxKey = std::array<std::uint32_t, 2>;
using PhiloxBlock = std::array<std::uint32_t, 4>;

// The block of four numbers at a counter.
constexpr PhiloxBlock philox(PhiloxKey key, PhiloxBlock counter) noexcept {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t left = std::uint64_t{0xd2511f53u} * counter[0];
    const std::uint64_t right = std::uint64_t{0xcd9e8d57u} * counter[2];
    counter = {static_cast<std::uint32_t>(right >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(right),
               static_cast<std::uint32_t>(left >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(left)};
    key[0] += 0x9e3779b9u;
    key[1] += 0xbb67ae85u;
  }
  return counter;
}

// The sequence of one encoding: another one, as good as unrelated, for any other value of a field of EncodeKey or of
// `purpose`.
class RandomSequence {
 public:
  RandomSequence(const EncodeKey& key, std::uint32_t purpose) noexcept {
    // The fields are more than a key holds: they are folded through the generator itself, one after another.
    key_ = {static_cast<std::uint32_t>(key.seed), static_cast<std::uint32_t>(key.seed >> 32)};
    fold(key.tensor, purpose);
    fold(key.step, key.rank);
  }
  // Numbers 4n to 4n + 3, each uniform in all 32-bit numbers.
  PhiloxBlock block(std::uint64_t n) const noexcept {
    return philox(key_, {static_cast<std::uint32_t>(n), static_cast<std::uint32_t>(n >> 32), 0, 0});
  }

 private:
  void fold(std::uint64_t word, std::uint32_t extra) noexcept {
    const PhiloxBlock mixed =
        philox(key_, {static_cast<std::uint32_t>(word), static_cast<std::uint32_t>(word >> 32), extra, 1});
    key_ = {mixed[0], mixed[1]};
  }

  PhiloxKey key_;
};

}  // namespace gradwire::compress

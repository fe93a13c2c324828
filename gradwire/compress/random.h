// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Random numbers of codecs: ranks with the same EncodeKey get the same numbers (kernels/philox.h).
#pragma once

#include <cstdint>

#include "gradwire/compress/codec.h"
#include "gradwire/kernels/philox.h"

namespace gradwire::compress {

using kernels::philox;
using kernels::PhiloxBlock;
using kernels::PhiloxKey;

// The purpose of the random numbers with which the integer codecs round.
inline constexpr std::uint32_t kIntegerRounding = 0x696e7471;

// The random sequence of one encoding. When any field of EncodeKey or `purpose` has another value, the sequence is
// another one, statistically independent of this one.
class RandomSequence {
 public:
  // Sequences of different keys or purposes have nothing in common.
  RandomSequence(const EncodeKey& key, std::uint32_t purpose) noexcept {
    // The fields do not fit into a key, so the generator itself mixes them in, one after another.
    key_ = {static_cast<std::uint32_t>(key.seed), static_cast<std::uint32_t>(key.seed >> 32)};
    fold(key.tensor, purpose, 1);
    fold(key.step, key.rank, 1 + key.piece);
  }
  // Numbers 4n to 4n + 3, each uniform in all 32-bit numbers.
  PhiloxBlock block(std::uint64_t n) const noexcept { return kernels::philox_block(key_, n); }
  const PhiloxKey& key() const noexcept { return key_; }

 private:
  // `last` is not 0, which is the last word of the counters of block().
  void fold(std::uint64_t word, std::uint32_t extra, std::uint32_t last) noexcept {
    const PhiloxBlock mixed =
        philox(key_, {static_cast<std::uint32_t>(word), static_cast<std::uint32_t>(word >> 32), extra, last});
    key_ = {mixed[0], mixed[1]};
  }

  PhiloxKey key_;
};

}  // namespace gradwire::compress

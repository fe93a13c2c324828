// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The values that random-k sends.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "gradwire/compress/random.h"

namespace gradwire::compress {

// The places of one encoding of `count` values, of which `number` are sent, in ascending order.
class RandomKPlaces {
 public:
  RandomKPlaces(const EncodeKey& key, std::size_t count, std::size_t number)
      : random_({key.seed, key.tensor, key.step, 0, key.piece}, kPurpose),
        short_(count / number),
        longer_(count % number) {}
  struct Place {
    std::size_t index;
    std::size_t length;  // of the stretch that it was drawn from
  };
  // Call with 0, 1, 2, ...
  Place next(std::size_t stretch) noexcept {
    if (stretch % 4 == 0) block_ = random_.block(stretch / 4);
    const std::size_t length = short_ + (stretch < longer_ ? 1 : 0);
    const std::size_t begin = stretch * short_ + std::min(stretch, longer_);
    const std::uint64_t product = std::uint64_t{block_[stretch % 4]} * length;  // lengths fit 32 bits
    return {begin + static_cast<std::size_t>(product >> 32), length};
  }

 private:
  static constexpr std::uint32_t kPurpose = 0x72616e6b;

  RandomSequence random_;
  PhiloxBlock block_{};
  std::size_t short_;
  std::size_t longer_;  // so many stretches, the first ones, have one value more
};

}  // namespace gradwire::compress

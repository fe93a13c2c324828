// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Random numbers by counter: Philox4x32-10 (J. Salmon, M. Moraes, R. Dror, D. Shaw: "Parallel random numbers: as easy
// as 1, 2, 3", SC 2011). The n-th number is a function of the key and n, so any part of a sequence can be computed
// without the rest.
#pragma once

#include <array>
#include <cstdint>

namespace gradwire::kernels {

using PhiloxKey = std::array<std::uint32_t, 2>;    // chooses the sequence
using PhiloxBlock = std::array<std::uint32_t, 4>;  // a counter, or the four random numbers made of it

// Single numbers, not arrays: a constexpr array is in the host's memory alone, and a kernel that reads it ends with a
// trap.
inline constexpr std::uint32_t kPhiloxFactor0 = 0xd2511f53u, kPhiloxFactor1 = 0xcd9e8d57u;  // of a round
inline constexpr std::uint32_t kPhiloxStep0 = 0x9e3779b9u,
                               kPhiloxStep1 = 0xbb67ae85u;  // of the key, from round to round
inline constexpr int kPhiloxRounds = 10;

// The block of four numbers at a counter.
constexpr PhiloxBlock philox(PhiloxKey key, PhiloxBlock counter) noexcept {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const std::uint64_t left = std::uint64_t{kPhiloxFactor0} * counter[0];
    const std::uint64_t right = std::uint64_t{kPhiloxFactor1} * counter[2];
    counter = {static_cast<std::uint32_t>(right >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(right),
               static_cast<std::uint32_t>(left >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(left)};
    key[0] += kPhiloxStep0;
    key[1] += kPhiloxStep1;
  }
  return counter;
}

// Numbers 4n to 4n + 3 of the sequence of a key.
constexpr PhiloxBlock philox_block(PhiloxKey key, std::uint64_t n) noexcept {
  return philox(key, {static_cast<std::uint32_t>(n), static_cast<std::uint32_t>(n >> 32), 0, 0});
}

}  // namespace gradwire::kernels

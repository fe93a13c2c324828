// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Groups of eight values, the unit of work of one thread: their floats, and their codes as one word. Plain C++ that
// g++ compiles too, so that tests without a GPU run the arithmetic of the kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define GRADWIRE_HOST_DEVICE __host__ __device__
#else
#define GRADWIRE_HOST_DEVICE
#endif

namespace gradwire::cuda {

inline constexpr unsigned kGroup = 8;  // values

// The number of groups of `count` values.
GRADWIRE_HOST_DEVICE constexpr std::size_t groups_in(std::size_t count) { return (count + kGroup - 1) / kGroup; }

// Values that share a scale: `count` values in rows of `block`, the last of which may be shorter.
struct Rows {
  std::size_t count;
  std::size_t block;

  GRADWIRE_HOST_DEVICE std::size_t number() const { return (count + block - 1) / block; }
  GRADWIRE_HOST_DEVICE std::size_t begin(std::size_t row) const { return row * block; }
  GRADWIRE_HOST_DEVICE std::size_t length(std::size_t row) const {
    return block < count - begin(row) ? block : count - begin(row);
  }
  GRADWIRE_HOST_DEVICE std::size_t groups_in_row() const { return groups_in(block); }
};

// The number of values in the group that begins at `first` of `count`.
GRADWIRE_HOST_DEVICE inline unsigned group_size(std::size_t first, std::size_t count) {
  return count - first < kGroup ? static_cast<unsigned>(count - first) : kGroup;
}

GRADWIRE_HOST_DEVICE inline bool is_aligned(const void* pointer, unsigned bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

// Half a group in memory that is aligned to 16 bytes: one access.
struct alignas(16) HalfGroup {
  float values[kGroup / 2];
};

// The first `size` values of a group, then zeros.
GRADWIRE_HOST_DEVICE inline void load_group(const float* from, unsigned size, float (&values)[kGroup]) {
  if (size == kGroup && is_aligned(from, 16)) {
    const auto* const halves = reinterpret_cast<const HalfGroup*>(from);
    const HalfGroup first = halves[0], second = halves[1];
    for (unsigned i = 0; i < kGroup / 2; ++i) values[i] = first.values[i];
    for (unsigned i = 0; i < kGroup / 2; ++i) values[kGroup / 2 + i] = second.values[i];
    return;
  }
  for (unsigned i = 0; i < kGroup; ++i) values[i] = i < size ? from[i] : 0.0f;
}

GRADWIRE_HOST_DEVICE inline void store_group(float* to, unsigned size, const float (&values)[kGroup]) {
  if (size == kGroup && is_aligned(to, 16)) {
    auto* const halves = reinterpret_cast<HalfGroup*>(to);
    halves[0] = {values[0], values[1], values[2], values[3]};
    halves[1] = {values[4], values[5], values[6], values[7]};
    return;
  }
  for (unsigned i = 0; i < kGroup; ++i) {
    if (i < size) to[i] = values[i];
  }
}

// The bytes of `size` codes of `bits` bits.
GRADWIRE_HOST_DEVICE constexpr unsigned code_bytes(unsigned size, int bits) {
  return (size * static_cast<unsigned>(bits) + 7) / 8;
}

// The codes of a group, the first in the lowest bits. Bytes of codes may have any alignment.
GRADWIRE_HOST_DEVICE inline std::uint64_t load_codes(const std::uint8_t* from, unsigned bytes) {
  if (bytes == 8 && is_aligned(from, 8)) {
    std::uint64_t whole;
    memcpy(&whole, __builtin_assume_aligned(from, 8), 8);
    return whole;
  }
  std::uint32_t low = 0, high = 0;
  if (bytes >= 4 && bytes % 4 == 0 && is_aligned(from, 4)) {
    memcpy(&low, __builtin_assume_aligned(from, 4), 4);
    if (bytes == 8) memcpy(&high, __builtin_assume_aligned(from + 4, 4), 4);
    return std::uint64_t{high} << 32 | low;
  }
  std::uint64_t word = 0;
  for (unsigned i = 0; i < bytes; ++i) word |= std::uint64_t{from[i]} << (8 * i);
  return word;
}

// Stores the codes of `size` values; unused bits of the last byte are 0.
GRADWIRE_HOST_DEVICE inline void store_codes(std::uint8_t* to, unsigned size, int bits, std::uint64_t word) {
  const unsigned used = size * static_cast<unsigned>(bits);
  if (used < 64) word &= (std::uint64_t{1} << used) - 1;
  const unsigned bytes = code_bytes(size, bits);
  if (bytes == 8 && is_aligned(to, 8)) {
    memcpy(__builtin_assume_aligned(to, 8), &word, 8);
    return;
  }
  if (bytes >= 4 && bytes % 4 == 0 && is_aligned(to, 4)) {
    const auto low = static_cast<std::uint32_t>(word), high = static_cast<std::uint32_t>(word >> 32);
    memcpy(__builtin_assume_aligned(to, 4), &low, 4);
    if (bytes == 8) memcpy(__builtin_assume_aligned(to + 4, 4), &high, 4);
    return;
  }
  for (unsigned i = 0; i < bytes; ++i) to[i] = static_cast<std::uint8_t>(word >> (8 * i));
}

// A number at any alignment.
GRADWIRE_HOST_DEVICE inline float load_float(const std::uint8_t* from) {
  float value;
  memcpy(&value, from, sizeof(value));
  return value;
}

// Writes decoded values, added to `sum` where there is one.
GRADWIRE_HOST_DEVICE inline void store_decoded(const float* sum, std::size_t first, unsigned size,
                                               float (&values)[kGroup], float* to) {
  if (sum != nullptr) {
    float before[kGroup];
    load_group(sum + first, size, before);
    for (unsigned i = 0; i < kGroup; ++i) values[i] = before[i] + values[i];
  }
  store_group(to + first, size, values);
}

}  // namespace gradwire::cuda

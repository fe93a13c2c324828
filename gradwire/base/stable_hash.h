// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A hash that ranks may compare: the same in every process, build and version.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace gradwire {
namespace internal {

inline constexpr std::uint64_t kFnvBasis = 0xcbf29ce484222325U;

constexpr std::uint64_t fnv_step(std::uint64_t hash, std::uint64_t word) noexcept {
  return (hash ^ word) * 0x100000001b3U;
}

// The factor and the shift are those of MurmurHash64A.
inline constexpr std::uint64_t kBitsFactor = 0xc6a4a7935bd1e995U;

constexpr std::uint64_t fold_high_bits(std::uint64_t word) noexcept { return word ^ (word >> 47); }

// Multiplication alone leaves a difference in the highest bit where it is, and two of them would cancel each other.
constexpr std::uint64_t bits_step(std::uint64_t hash, std::uint64_t word) noexcept {
  return (hash ^ fold_high_bits(word * kBitsFactor) * kBitsFactor) * kBitsFactor;
}

}  // namespace internal

// FNV-1a over the bytes of `text`, 64 bits. Not against an adversary: whoever chooses the text can choose the hash.
// Thread-safe.
constexpr std::uint64_t stable_hash(std::string_view text) noexcept {
  std::uint64_t hash = internal::kFnvBasis;
  for (const char c : text) hash = internal::fnv_step(hash, static_cast<unsigned char>(c));
  return hash;
}

// FNV-1a that takes each of `numbers` as one word of 64 bits, so not the hash of their bytes. Thread-safe.
constexpr std::uint64_t stable_hash(std::span<const std::int64_t> numbers) noexcept {
  std::uint64_t hash = internal::kFnvBasis;
  for (const std::int64_t number : numbers) hash = internal::fnv_step(hash, static_cast<std::uint64_t>(number));
  return hash;
}

// For large data, such as parameters, of which equal hashes have to mean equal bits: a word of 64 bits at a time, and
// differences in some bits of some words do not cancel each other, as those in the highest bits do in stable_hash() of
// numbers. Ranks have the same order of bytes. Not against an adversary. Thread-safe.
inline std::uint64_t stable_hash_of_bits(std::span<const std::byte> data) noexcept {
  std::uint64_t hash = internal::bits_step(internal::kFnvBasis, data.size());
  std::uint64_t word = 0;
  for (; data.size() >= sizeof(word); data = data.subspan(sizeof(word))) {
    std::memcpy(&word, data.data(), sizeof(word));
    hash = internal::bits_step(hash, word);
  }
  word = 0;
  if (!data.empty()) std::memcpy(&word, data.data(), data.size());
  hash = internal::bits_step(hash, word);
  return internal::fold_high_bits(internal::fold_high_bits(hash) * internal::kBitsFactor);
}

}  // namespace gradwire

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// One entry a rank: on the stack for the usual worlds, on the heap for large ones.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

namespace gradwire::generic {

// Throws std::bad_alloc for large worlds. Not copied: span() points into it.
template <class T>
class RankArray {
 public:
  explicit RankArray(std::size_t ranks) : ranks_(ranks), many_(ranks > kFew ? ranks : 0) {}
  RankArray(const RankArray&) = delete;
  RankArray& operator=(const RankArray&) = delete;

  T& operator[](std::size_t rank) noexcept { return data()[rank]; }
  std::span<T> span() noexcept { return {data(), ranks_}; }
  std::span<const T> span() const noexcept { return {many_.empty() ? few_.data() : many_.data(), ranks_}; }

 private:
  static constexpr std::size_t kFew = 64;
  T* data() noexcept { return many_.empty() ? few_.data() : many_.data(); }

  const std::size_t ranks_;
  std::array<T, kFew> few_;
  std::vector<T> many_;
};

}  // namespace gradwire::generic

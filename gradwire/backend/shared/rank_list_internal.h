// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A list with at most one entry a rank of a host. Takes no memory from the heap: that is a good part of a small call.
#pragma once

#include <cstddef>
#include <type_traits>

#include "gradwire/backend/shared/max_ranks.h"

namespace gradwire::shared {

template <class T>
class RankList {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);

 public:
  RankList() noexcept {}  // NOLINT: the entries are not there yet
  RankList(const RankList&) = delete;
  RankList& operator=(const RankList&) = delete;

  // There is room: the list has fewer entries than a host may have ranks.
  void push_back(const T& entry) noexcept { entries_[size_++] = entry; }

  bool empty() const noexcept { return size_ == 0; }
  std::size_t size() const noexcept { return size_; }
  const T& operator[](std::size_t i) const noexcept { return entries_[i]; }
  const T* data() const noexcept { return entries_; }
  const T* begin() const noexcept { return entries_; }
  const T* end() const noexcept { return entries_ + size_; }

 private:
  std::size_t size_ = 0;
  union {
    T entries_[static_cast<std::size_t>(kMaxRanksOfHost)];
  };
};

}  // namespace gradwire::shared

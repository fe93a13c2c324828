// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/shared/world_internal.h"

#include <algorithm>
#include <mutex>

namespace gradwire::shared {

void SegmentTable::add(std::uint64_t segment, const Region& region, int rank) {
  const std::unique_lock lock(mutex_);
  rows_.push_back({segment, region, region.part(rank), region.stride});
  generation_.fetch_add(1, std::memory_order_release);
}

void SegmentTable::remove(std::uint64_t segment) {
  Region last;  // unmapped after the lock is gone
  const std::unique_lock lock(mutex_);
  const auto row = std::find_if(rows_.begin(), rows_.end(), [&](const Row& r) { return r.segment == segment; });
  if (row == rows_.end()) return;
  last = std::move(row->region);
  rows_.erase(row);
  generation_.fetch_add(1, std::memory_order_release);
}

bool SegmentTable::empty() const {
  const std::shared_lock lock(mutex_);
  return rows_.empty();
}

std::optional<SegmentTable::Found> SegmentTable::find(const void* data, std::size_t bytes) const {
  const auto* begin = static_cast<const std::byte*>(data);
  const std::shared_lock lock(mutex_);
  for (const Row& row : rows_) {
    if (begin >= row.begin && begin + bytes <= row.begin + row.bytes) {
      return Found{{row.segment, static_cast<std::uint64_t>(begin - row.begin)}, row.begin, row.bytes, row.region};
    }
  }
  return std::nullopt;
}

std::vector<int> World::gone() const {
  std::vector<int> ranks;
  for (int peer = 0; peer < size_; ++peer) {
    if (is_gone(peer)) ranks.push_back(peer);
  }
  return ranks;
}

std::uint64_t mix(std::uint64_t a, std::uint64_t b) noexcept {
  // The finalizer of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
  std::uint64_t z = a * 0x9e3779b97f4a7c15U + b + 0x632be59bd9b4e019U;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  z ^= z >> 31;
  return z == 0 ? 1 : z;
}

}  // namespace gradwire::shared

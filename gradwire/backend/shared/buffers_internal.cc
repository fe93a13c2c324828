// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/shared/buffers_internal.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "gradwire/backend/shared/prefetch_internal.h"
#include "gradwire/base/copy.h"

namespace gradwire::shared {
namespace {

constexpr std::uint64_t kEverywhere = 1;  // the segment of ranks that are threads: all memory
constexpr std::size_t kSliceAlignment = 64;
// Others read a piece while the next one is staged. Shorter pieces cost more than the others gain by beginning earlier.
constexpr std::size_t kShortWindow = std::size_t{64} << 10;
constexpr std::size_t kShortPiece = std::size_t{16} << 10;
// RankSlot::staged: the bytes of a window, below the number of the window.
constexpr int kStagedBits = 20;
constexpr std::uint64_t kStagedMask = (std::uint64_t{1} << kStagedBits) - 1;
static_assert(ChannelLayout::kLargestWindow <= kStagedMask);

}  // namespace

Buffers::Buffers(World& world, Region region) : world_(world), region_(std::move(region)), layout_(world.size()) {}

Location Buffers::locate(const void* data, std::size_t bytes) {
  const auto* begin = static_cast<const std::byte*>(data);
  if (world_.shares_all_memory()) return {kEverywhere, reinterpret_cast<std::uint64_t>(begin)};
  auto& cache = cached_segment_;
  if (cache.generation != world_.segments().generation()) {
    cache = {};
    cache.generation = world_.segments().generation();
    cache.none = world_.segments().empty();
  }
  if (cache.none) return {};
  if (cache.segment == 0 || begin < cache.begin || begin + bytes > cache.begin + cache.bytes) {
    const auto found = world_.segments().find(data, bytes);
    if (!found) return {};
    cache.segment = found->location.segment;
    cache.begin = found->begin;
    cache.bytes = found->bytes;
    cache.base = found->region.base.get();
    cache.stride = found->region.stride;
  }
  return {cache.segment, static_cast<std::uint64_t>(begin - cache.begin)};
}

Location Buffers::locate(const Offer& offer, const void* otherwise, std::size_t bytes) {
  if (!offer.reachable) return {};
  if (offer.parts.empty()) return locate(otherwise, bytes);
  const Location first = locate(offer.parts[0].data, offer.parts[0].count);
  for (const ConstSlice& part : offer.parts) {
    if (locate(part.data, part.count).segment != first.segment) return {};
  }
  return first;
}

std::uint64_t Buffers::offset_of(const void* part, Location location) const noexcept {
  if (location.is_staged()) return 0;
  if (world_.shares_all_memory()) return reinterpret_cast<std::uintptr_t>(part);
  return static_cast<std::uint64_t>(static_cast<const std::byte*>(part) - cached_segment_.begin);
}

std::byte* Buffers::resolve(int peer, std::uint64_t offset) const noexcept {
  if (world_.shares_all_memory()) return reinterpret_cast<std::byte*>(offset);
  return cached_segment_.base + static_cast<std::size_t>(peer) * cached_segment_.stride + offset;
}

std::size_t Buffers::slice_of(std::size_t parts) const noexcept {
  return layout_.window / parts / kSliceAlignment * kSliceAlignment;
}

std::size_t Buffers::first_slice_of(std::size_t parts, std::size_t bytes) const noexcept {
  const std::size_t quarter = (bytes / 4 + kShortPiece - 1) / kShortPiece * kShortPiece;
  return std::min(slice_of(parts), std::clamp(quarter, kShortPiece, kShortWindow));
}

void Buffers::stage(const Offer& offer, std::size_t begin, std::size_t bytes) const noexcept {
  stage_range(offer, begin, 0, bytes);
}

void Buffers::stage_in_pieces(const Offer& offer, std::size_t begin, std::size_t bytes) const noexcept {
  const std::size_t piece = bytes <= kShortWindow ? kShortPiece : 2 * kShortPiece;
  for (std::size_t at = 0; at < bytes; at += piece) {
    const std::size_t end = std::min(bytes, at + piece);
    stage_range(offer, begin, at, end);
    slot(world_.rank()).staged.store(window_ << kStagedBits | end, std::memory_order_release);
  }
}

void Buffers::stage_range(const Offer& offer, std::size_t begin, std::size_t from, std::size_t to) const noexcept {
  if (offer.parts.empty()) return;
  const std::size_t slice = slice_of(offer.parts.size());
  std::byte* area = input_area(world_.rank());
  for (std::size_t i = 0; i < offer.parts.size(); ++i) {
    const ConstSlice& part = offer.parts[i];
    if (part.count <= begin + from) continue;
    copy_bytes(area + i * slice + from, static_cast<const std::byte*>(part.data) + begin + from,
               std::min(to - from, part.count - begin - from));
  }
}

std::size_t Buffers::staged_by(std::uint64_t owners) const noexcept {
  std::size_t least = layout_.window;
  for (; owners != 0; owners &= owners - 1) {
    const std::uint64_t staged = slot(std::countr_zero(owners)).staged.load(std::memory_order_acquire);
    const std::uint64_t window = staged >> kStagedBits;
    // An owner that has met this rank is at the next window already.
    if (window <= window_)
      least = std::min(least, window < window_ ? 0 : static_cast<std::size_t>(staged & kStagedMask));
  }
  return least;
}

void Buffers::prepare_to_stage(const Offer& offer) const noexcept {
  if (offer.parts.empty()) return;
  // More lines than this would keep others waiting that the rank needs sooner.
  constexpr std::size_t kMost = std::size_t{8} << 10;
  const std::size_t slice = slice_of(offer.parts.size());
  const std::size_t most_a_part = std::min(slice, kMost / offer.parts.size());
  for (std::size_t i = 0; i < offer.parts.size(); ++i)
    prefetch_to_write(input_area(world_.rank()) + i * slice, std::min(most_a_part, offer.parts[i].count));
}

const std::byte* Buffers::staged_part(int peer, std::size_t part, std::size_t parts) const noexcept {
  return input_area(peer) + part * slice_of(parts);
}

}  // namespace gradwire::shared

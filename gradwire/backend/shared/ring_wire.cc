// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/shared/ring_wire_internal.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "gradwire/backend/shared/futex_internal.h"
#include "gradwire/backend/shared/point_to_point_internal.h"

namespace gradwire::shared {
namespace {

// Bytes of all rings together, as long as that leaves each enough.
constexpr std::size_t kAllRings = std::size_t{4} << 20;
constexpr std::size_t kSmallestRing = std::size_t{4} << 10;
constexpr std::size_t kLargestRing = std::size_t{256} << 10;
constexpr std::size_t kPage = 4096;
constexpr std::size_t kMarkOffset = 128;  // in the first page, behind the bell
static_assert(sizeof(Bell) <= kMarkOffset && kMarkOffset + sizeof(MemoryMark) <= kPage);

std::size_t ring_capacity(int size) noexcept {
  const auto pairs = static_cast<std::size_t>(size) * static_cast<std::size_t>(size);
  return std::clamp(std::bit_floor(kAllRings / pairs), kSmallestRing, kLargestRing);
}

std::size_t ring_bytes(std::size_t capacity) noexcept { return sizeof(RingHeader) + capacity; }

}  // namespace

std::size_t point_to_point_stride(int size) noexcept {
  const std::size_t bytes = kPage + static_cast<std::size_t>(size) * ring_bytes(ring_capacity(size));
  return (bytes + kPage - 1) / kPage * kPage;
}

RingWire::RingWire(std::shared_ptr<World> world, Region region)
    : world_(std::move(world)),
      region_(std::move(region)),
      capacity_(ring_capacity(world_->size())),
      memory_(*world_, region_.base.get() + kMarkOffset, region_.stride),
      touched_(static_cast<std::size_t>(world_->size()), false) {
  for (int peer = 0; peer < world_->size(); ++peer) {
    to_.push_back(make_ring(peer, world_->rank()));
    from_.push_back(make_ring(world_->rank(), peer));
  }
}

Ring RingWire::make_ring(int reader, int writer) const {
  std::byte* begin = region_.part(reader) + kPage + static_cast<std::size_t>(writer) * ring_bytes(capacity_);
  return {reinterpret_cast<RingHeader*>(begin), begin + sizeof(RingHeader), capacity_};
}

bool RingWire::write(int peer, const messages::Frame& frame, std::span<const std::byte> payload) {
  const auto index = static_cast<std::size_t>(peer);
  if (!to_[index].write(frame, payload.data(), payload.size())) return false;
  touched_[index] = true;
  return true;
}

bool RingWire::read(messages::FrameSink& sink) {
  bool moved = false;
  for (int source = 0; source < world_->size(); ++source) moved = read_from(source, sink) || moved;
  return moved;
}

bool RingWire::read_from(int source, messages::FrameSink& sink) {
  const auto index = static_cast<std::size_t>(source);
  Ring& ring = from_[index];
  messages::Frame frame;
  messages::Payload payload;
  bool moved = false;
  while (ring.peek(frame, payload) && sink.on_frame(source, frame, payload)) {
    if (ring.pop(frame)) touched_[index] = true;
    moved = true;
  }
  return moved;
}

void RingWire::flush() {
  for (std::size_t peer = 0; peer < touched_.size(); ++peer) {
    if (!touched_[peer]) continue;
    touched_[peer] = false;
    ring_bell(static_cast<int>(peer));
  }
}

std::uint32_t RingWire::bell() const noexcept { return bell_of(world_->rank()).rings.load(std::memory_order_seq_cst); }

void RingWire::sleep(std::uint32_t seen, std::chrono::microseconds limit) noexcept {
  Bell& own = bell_of(world_->rank());
  own.sleepers.fetch_add(1, std::memory_order_seq_cst);
  if (own.rings.load(std::memory_order_seq_cst) == seen) futex_wait(own.rings, seen, limit);
  own.sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

void RingWire::ring_bell(int rank) const noexcept {
  Bell& other = bell_of(rank);
  other.rings.fetch_add(1, std::memory_order_seq_cst);
  if (other.sleepers.load(std::memory_order_seq_cst) != 0) futex_wake_all(other.rings);
}

}  // namespace gradwire::shared

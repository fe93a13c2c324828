// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Frames between ranks that share memory: every ordered pair of ranks has a ring with one writer and one reader, and
// every rank has a bell.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "gradwire/backend/messages/wire_internal.h"
#include "gradwire/backend/shared/message_ring_internal.h"
#include "gradwire/backend/shared/peer_memory_internal.h"
#include "gradwire/backend/shared/world_internal.h"

namespace gradwire::shared {

class RingWire final : public messages::Wire {
 public:
  // `region` has point_to_point_stride() bytes a rank, zeroed.
  RingWire(std::shared_ptr<World> world, Region region);

  int size() const noexcept override { return world_->size(); }
  std::size_t max_payload() const noexcept override { return capacity_ / 4; }
  bool write(int peer, const messages::Frame& frame, std::span<const std::byte> payload) override;
  bool read(messages::FrameSink& sink) override;
  std::uint64_t lend(std::span<const std::byte> memory) noexcept override { return memory_.lend(memory); }
  bool pull(int peer, std::uint64_t from, std::span<std::byte> to) noexcept override {
    return memory_.read(peer, from, to);
  }
  void flush() override;
  std::uint32_t bell() const noexcept override;
  void sleep(std::uint32_t seen, std::chrono::microseconds limit) noexcept override;
  void wake() noexcept override { ring_bell(world_->rank()); }

 private:
  bool read_from(int source, messages::FrameSink& sink);
  Ring make_ring(int reader, int writer) const;
  Bell& bell_of(int rank) const { return *reinterpret_cast<Bell*>(region_.part(rank)); }
  void ring_bell(int rank) const noexcept;

  const std::shared_ptr<World> world_;
  const Region region_;
  const std::size_t capacity_;
  PeerMemory memory_;
  std::vector<Ring> to_;       // this rank writes, by peer
  std::vector<Ring> from_;     // this rank reads, by peer
  std::vector<bool> touched_;  // peers whose bell is to ring
};

}  // namespace gradwire::shared

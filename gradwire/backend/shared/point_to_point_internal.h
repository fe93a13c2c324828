// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Point-to-point messages between ranks that share memory: the engine of messages over rings, for the channels of one
// world. Why a rank's part cannot come any more stands in shared memory, and its process can be asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>

#include "gradwire/backend/backend.h"
#include "gradwire/backend/messages/engine_internal.h"
#include "gradwire/backend/shared/world_internal.h"

namespace gradwire::shared {

// The memory of all rings: bytes a rank, for World::share_region.
std::size_t point_to_point_stride(int size) noexcept;

class PointToPoint {
 public:
  PointToPoint(std::shared_ptr<World> world, Region region);
  ~PointToPoint();
  PointToPoint(const PointToPoint&) = delete;
  PointToPoint& operator=(const PointToPoint&) = delete;

  // Says why a peer's part on a channel cannot come any more, or null. Called with the lock held; must not call back.
  using FailureOf = std::function<messages::Loss(int peer)>;
  void add_channel(std::uint64_t channel, FailureOf failure_of);
  // Fails what is under way on the channel with `reason`.
  void end_channel(std::uint64_t channel, std::exception_ptr reason) noexcept;
  void remove_channel(std::uint64_t channel) noexcept;

  std::shared_ptr<Request> isend(std::uint64_t channel, const void* data, std::size_t bytes, int destination,
                                 std::uint32_t tag);
  std::shared_ptr<Request> irecv(std::uint64_t channel, void* data, std::size_t bytes, int source, std::uint32_t tag);

 private:
  std::exception_ptr why_gone(int peer) const;

  const std::shared_ptr<World> world_;
  const std::shared_ptr<const messages::Members> members_;
  const std::exception_ptr destroyed_;
  const std::shared_ptr<messages::Engine> engine_;
};

}  // namespace gradwire::shared

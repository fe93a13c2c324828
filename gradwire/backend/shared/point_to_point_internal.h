// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Point-to-point messages between ranks that share memory.
//
// Every ordered pair of ranks has a ring of bytes with one writer and one reader. Frames in it:
//   message   a small message, header and payload
//   offer     a large message is there; it stays with its sender
//   accept    the receiver has a buffer for it
//   piece     part of a large message that was accepted
//   cancel    the sender of an accepted message went back on it
// Small messages that nobody waits for yet are kept on the heap; large ones cost the receiver nothing before it wants
// them. A thread of each rank, started with the first message that cannot end at once, moves the frames, so messages go
// on while their rank computes or sits in a collective.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "gradwire/backend/backend.h"
#include "gradwire/backend/shared/world_internal.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/process.h"

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
  using FailureOf = std::function<std::exception_ptr(int peer)>;
  void add_channel(std::uint64_t channel, FailureOf failure_of);
  // Fails what is under way on the channel with `reason`.
  void end_channel(std::uint64_t channel, std::exception_ptr reason) noexcept;
  void remove_channel(std::uint64_t channel) noexcept;

  std::shared_ptr<Request> isend(std::uint64_t channel, const void* data, std::size_t bytes, int destination,
                                 std::uint32_t tag);
  std::shared_ptr<Request> irecv(std::uint64_t channel, void* data, std::size_t bytes, int source, std::uint32_t tag);

 private:
  class State;
  class Message;
  std::shared_ptr<State> state_;
  OwnerProcess owner_;
};

}  // namespace gradwire::shared

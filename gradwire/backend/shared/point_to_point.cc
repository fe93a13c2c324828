// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/shared/point_to_point_internal.h"

#include <numeric>
#include <utility>

#include "gradwire/backend/peer_error_internal.h"
#include "gradwire/backend/shared/peer_memory_internal.h"
#include "gradwire/backend/shared/ring_wire_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::shared {
namespace {

// How long a waiter asks the rings itself where every rank has a processor of its own.
constexpr std::chrono::microseconds kSpinTime{30};
constexpr std::chrono::microseconds kWakeUp{100};

std::shared_ptr<const messages::Members> everyone(const World& world) {
  auto members = std::make_shared<messages::Members>();
  members->rank = world.rank();
  members->peers.resize(static_cast<std::size_t>(world.size()));
  std::iota(members->peers.begin(), members->peers.end(), 0);
  return members;
}

std::shared_ptr<messages::Engine> make_engine(const std::shared_ptr<World>& world, Region region) {
  auto wire = std::make_unique<RingWire>(world, std::move(region));
  messages::Engine::Options options;
  options.limits.eager_message = wire->max_payload();
  if (world->may_spin()) options.rhythm.spin = kSpinTime;
  options.rhythm.wake_up = kWakeUp;
  if (read_peers() == ReadPeers::where_quicker) options.clock = std::chrono::steady_clock::now;
  options.rhythm.waiter_leads = true;
  return std::make_shared<messages::Engine>(std::move(wire), options);
}

}  // namespace

PointToPoint::PointToPoint(std::shared_ptr<World> world, Region region)
    : world_(std::move(world)),
      members_(everyone(*world_)),
      destroyed_(std::make_exception_ptr(
          AbortedError(concat("point to point on rank ", world_->rank(), ": the group was destroyed meanwhile")))),
      engine_(make_engine(world_, std::move(region))) {}

PointToPoint::~PointToPoint() { engine_->close(destroyed_, nullptr); }

std::exception_ptr PointToPoint::why_gone(int peer) const {
  if (!world_->is_gone(peer)) return nullptr;
  return std::make_exception_ptr(peer_error(concat("point to point on rank ", world_->rank(), " of ", world_->size(),
                                                   ": rank ", peer, " (", world_->describe_peer(peer), ") died"),
                                            {peer}));
}

void PointToPoint::add_channel(std::uint64_t channel, FailureOf failure_of) {
  engine_->add_channel(channel, members_, [this, failure_of = std::move(failure_of)](int peer) {
    messages::Loss loss = failure_of(peer);
    return loss.reason != nullptr ? loss : messages::Loss{why_gone(peer)};
  });
}

void PointToPoint::end_channel(std::uint64_t channel, std::exception_ptr reason) noexcept {
  engine_->end_channel(channel, reason, nullptr);
}

void PointToPoint::remove_channel(std::uint64_t channel) noexcept {
  engine_->end_channel(channel, destroyed_, nullptr);
  engine_->remove_channels(channel, channel);
}

std::shared_ptr<Request> PointToPoint::isend(std::uint64_t channel, const void* data, std::size_t bytes,
                                             int destination, std::uint32_t tag) {
  return engine_->isend(channel, data, bytes, destination, tag);
}

std::shared_ptr<Request> PointToPoint::irecv(std::uint64_t channel, void* data, std::size_t bytes, int source,
                                             std::uint32_t tag) {
  return engine_->irecv(channel, data, bytes, source, tag);
}

}  // namespace gradwire::shared

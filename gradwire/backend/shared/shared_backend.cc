// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/shared/shared_backend_internal.h"

namespace gradwire::shared {
namespace {

constexpr std::uint64_t kFirstChannel = 1;

// A part of another region's every part: [begin, begin + bytes) of each. The stride stays the same, so part(r) of the
// result is where it belongs; users of it keep within their bytes.
Region inner(const Region& region, std::size_t begin) {
  return {std::shared_ptr<std::byte>(region.base, region.base.get() + begin), region.stride};
}

}  // namespace

std::size_t rendezvous_stride(int size) noexcept { return ChannelLayout(size).stride + point_to_point_stride(size); }

SharedBackend::SharedBackend(std::string_view name, std::shared_ptr<World> world, const Region& region,
                             Deadline deadline)
    : name_(name),
      world_(std::move(world)),
      point_to_point_(std::make_shared<PointToPoint>(world_, inner(region, ChannelLayout(world_->size()).stride))),
      channel_(std::make_unique<SharedChannel>(
          world_, point_to_point_, region, kFirstChannel,
          world_->may_spin() ? HostMachine::Waiting::spins : HostMachine::Waiting::yields)) {
  channel_->barrier({deadline, {}});
}

Capabilities SharedBackend::capabilities() const noexcept {
  return {.in_place_memory = true,
          .bitwise_equal = true,
          .detects_mismatch = true,
          .detects_death = true,
          .crosses_hosts = false};
}

}  // namespace gradwire::shared

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The Backend over a World: first channel, messages, and the memory of both.
#pragma once

#include <memory>
#include <string_view>

#include "gradwire/backend/backend.h"
#include "gradwire/backend/shared/point_to_point_internal.h"
#include "gradwire/backend/shared/shared_channel_internal.h"
#include "gradwire/backend/shared/world_internal.h"

namespace gradwire::shared {

// What a rank's part of the memory that a rendezvous sets up must hold: the first channel's and the messages'.
std::size_t rendezvous_stride(int size) noexcept;

class SharedBackend final : public Backend {
 public:
  // `region` has rendezvous_stride() bytes a rank, zeroed. Meets the others before it returns, by `deadline`; throws
  // what a barrier throws.
  SharedBackend(std::string_view name, std::shared_ptr<World> world, const Region& region, Deadline deadline);

  std::string_view name() const noexcept override { return name_; }
  int rank() const noexcept override { return world_->rank(); }
  int size() const noexcept override { return world_->size(); }
  Capabilities capabilities() const noexcept override;
  Channel& channel() noexcept override { return *channel_; }

 private:
  std::string_view name_;
  std::shared_ptr<World> world_;
  std::shared_ptr<PointToPoint> point_to_point_;
  std::unique_ptr<SharedChannel> channel_;
};

}  // namespace gradwire::shared

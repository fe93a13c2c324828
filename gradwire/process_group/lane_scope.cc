// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/process_group/lane_scope.h"

#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/base/thread_local.h"

namespace gradwire {
namespace {

GRADWIRE_STATIC_THREAD_LOCAL LaneScope* innermost = nullptr;

}  // namespace

LaneScope::LaneScope(const std::vector<Route>& routes, CallTag tag)
    : routes_(routes), tag_(tag), outer_(std::exchange(innermost, this)) {}

LaneScope::~LaneScope() { innermost = outer_; }

LaneScope::Pause::Pause() noexcept : paused_(std::exchange(innermost, nullptr)) {}

LaneScope::Pause::~Pause() { innermost = paused_; }

LaneScope::Overlap::Overlap() noexcept
    : lane_(innermost), before_(lane_ != nullptr && std::exchange(lane_->overlaps_, true)) {}

LaneScope::Overlap::~Overlap() {
  if (lane_ != nullptr) lane_->overlaps_ = before_;
}

LaneScope* LaneScope::current() noexcept { return innermost; }

ProcessGroup& LaneScope::route(ProcessGroup& group) const {
  for (const Route& route : routes_) {
    if (route.duplicate.get() == &group || route.original.get() == &group) return *route.duplicate;
  }
  throw InvalidArgument(concat("rank ", group.rank(), ": a communication hook used the group '", group.group_name(),
                               "' (", group.name(),
                               "), which was not named when the hook was registered; use the group that the bucket "
                               "hands out, or name this one at registration so that each lane gets a duplicate of it"));
}

CallTag LaneScope::next_tag() noexcept {
  const CallTag tag = tag_;
  ++tag_.stage;
  return tag;
}

}  // namespace gradwire

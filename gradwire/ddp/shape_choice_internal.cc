// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/shape_choice_internal.h"

namespace gradwire::internal {

ReductionShape ShapeChoice::next(CommHook* hook, const BucketArrangement& arrangement, bool on_lanes) const {
  auto* const chooses = dynamic_cast<ChoosesShape*>(hook);
  if (chooses == nullptr) return {};
  const ShapeFreedom free = freedom(*hook, arrangement, on_lanes);
  ReductionShape shape = chooses->next_shape(free);
  if (!free.buckets) shape.cap_bytes = 0;
  if (!free.lanes) shape.lanes = 0;
  return shape;
}

ShapeFreedom ShapeChoice::freedom(const CommHook& hook, const BucketArrangement& arrangement, bool on_lanes) const {
  ShapeFreedom freedom;
  freedom.own_lanes = options_.own_lanes;
  freedom.same_bits = options_.same_bits;
  if (!options_.any || !arrangement.is_ordered()) return freedom;
  freedom.buckets = options_.free_caps && arrangement.finds_order();
  freedom.lanes = options_.free_lanes && hook.traits().parallel_safe && on_lanes;
  freedom.plan_for = arrangement.planner();
  return freedom;
}

}  // namespace gradwire::internal

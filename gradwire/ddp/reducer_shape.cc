// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The Reducer where a hook chooses the size of the buckets and the number of lanes (reduction_shape.h).
#include <algorithm>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/ddp_options_internal.h"
#include "gradwire/ddp/reducer_internal.h"

namespace gradwire::internal {
namespace {

BucketPlan plan_with(const std::vector<TensorSpec>& ordered, std::size_t cap_bytes, const BucketCaps& own) {
  return plan_buckets(ordered, cap_bytes == 0 ? own : BucketCaps{cap_bytes});
}

}  // namespace

ShapeFreedom Reducer::freedom() const {
  ShapeFreedom freedom;
  freedom.own_lanes = options_.lanes;
  freedom.same_bits = options_.same_bits;
  if (!rebuilt_ || group_->size() == 1) return freedom;
  for (std::size_t i = 0; i < store_.parameter_count(); ++i) {
    if (!store_.parameter(i).is_cpu()) return freedom;
  }
  freedom.buckets = options_.free_caps && rebuilds();
  freedom.lanes = options_.free_lanes && hook_->traits().parallel_safe && launcher_.lanes_for(hook_.get()) > 0;
  freedom.plan_for = [ordered = ordered_specs_, own = options_.caps](std::size_t cap_bytes) {
    return plan_with(*ordered, cap_bytes, own);
  };
  return freedom;
}

// Called before each synchronized forward. All ranks get the same shape, so they change alike, without a word.
void Reducer::follow_shape() {
  auto* const chooses = dynamic_cast<ChoosesShape*>(hook_.get());
  ReductionShape shape;
  if (chooses != nullptr) {
    const ShapeFreedom free = freedom();
    shape = chooses->next_shape(free);
    if (!free.buckets) shape.cap_bytes = 0;
    if (!free.lanes) shape.lanes = 0;
  }
  if (shape == shape_) return;
  if (shape.cap_bytes != shape_.cap_bytes) {
    BucketPlan plan = plan_with(*ordered_specs_, shape.cap_bytes, options_.caps);
    if (plan != store_.plan()) arrange_anew(std::move(plan));
  }
  if (shape.lanes != shape_.lanes) use_lanes(shape.lanes != 0 ? shape.lanes : options_.lanes);
  shape_ = shape;
}

void Reducer::use_lanes(int lanes) {
  if (lanes < 1 || lanes > kMaxLanes) {
    throw InvalidArgument(concat("The hook '", hook_->traits().name, "' chose ", lanes, " lanes on rank ",
                                 group_->rank(), "; it must choose 1 to ", kMaxLanes, "."));
  }
  launcher_.use_lanes(lanes);
  use_hook(hook_);
}

}  // namespace gradwire::internal

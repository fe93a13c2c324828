// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The order of the Reducer's buckets, and the shape that a hook chooses (reduction_shape.h).
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/ddp_options_internal.h"
#include "gradwire/ddp/reducer_internal.h"

namespace gradwire::internal {

// Called once, before the second synchronized forward: plans the buckets in the order in which gradients became ready
// on rank 0. When an order was loaded, called before the first synchronized forward.
void Reducer::use_order() {
  order_.agree(*control_, store_.specs());
  arrange_anew(order_.plan());
}

void Reducer::arrange_anew(BucketPlan plan) {
  // Gradients may lie in the memory that is cut anew: their values must be kept, and must not become the gradients of
  // other parameters.
  store_.make_gradients_private();
  store_.arrange(std::move(plan), /*is_final=*/true);
  report_.set_rebuilt_plan(store_.plan(), order_.parameters());
  begin_iteration();
}

ShapeFreedom Reducer::freedom() const {
  ShapeFreedom freedom;
  freedom.own_lanes = options_.lanes;
  freedom.same_bits = options_.same_bits;
  if (!order_.is_agreed() || group_->size() == 1) return freedom;
  for (std::size_t i = 0; i < store_.parameter_count(); ++i) {
    if (!store_.parameter(i).is_cpu()) return freedom;
  }
  freedom.buckets = options_.free_caps && finds_order();
  freedom.lanes = options_.free_lanes && reduction_.hook()->traits().parallel_safe && reduction_.lanes() > 0;
  freedom.plan_for = order_.planner();
  return freedom;
}

// Called before each synchronized forward. All ranks get the same shape, so they change alike, without a word.
void Reducer::follow_shape() {
  auto* const chooses = dynamic_cast<ChoosesShape*>(reduction_.hook().get().get());
  ReductionShape shape;
  if (chooses != nullptr) {
    const ShapeFreedom free = freedom();
    shape = chooses->next_shape(free);
    if (!free.buckets) shape.cap_bytes = 0;
    if (!free.lanes) shape.lanes = 0;
  }
  if (shape == shape_) return;
  if (shape.cap_bytes != shape_.cap_bytes) {
    BucketPlan plan = order_.plan(shape.cap_bytes);
    if (plan != store_.plan()) arrange_anew(std::move(plan));
  }
  if (shape.lanes != shape_.lanes) {
    const int lanes = shape.lanes != 0 ? shape.lanes : options_.lanes;
    if (lanes < 1 || lanes > kMaxLanes) {
      throw InvalidArgument(concat("The hook '", reduction_.hook_name(), "' chose ", lanes, " lanes on rank ",
                                   group_->rank(), "; it must choose 1 to ", kMaxLanes, "."));
    }
    reduction_.use_lanes(lanes);
    report_hook();
  }
  shape_ = shape;
}

}  // namespace gradwire::internal

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The shape of a reduction: the size of the buckets, and the number of lanes. A hook may choose the shape anew before
// each iteration.
#pragma once

#include <cstddef>
#include <functional>

#include "gradwire/ddp/bucket_plan.h"

namespace gradwire {

struct ReductionShape {
  // The cap of all buckets in bytes. 0: the caps that DDP has by its options.
  std::size_t cap_bytes = 0;
  // The number of lanes, from 1 to 8. 0: the number that DDP has by its options.
  int lanes = 0;
  bool operator==(const ReductionShape&) const = default;
};

// The parts of the shape that DDP can change before the next iteration. The same on all ranks. DDP changes no part that
// the user has given (DdpOptions::bucket_cap_mb, lanes), nothing before the order of the gradients is known, nothing
// where a gradient lies on a device, and no buckets with find_unused_parameters. It changes no lanes without a group
// that can be duplicated, and none for a hook that is not parallel_safe.
struct ShapeFreedom {
  bool buckets = false;
  bool lanes = false;
  int own_lanes = 0;  // the number of lanes that DDP has by its options
  // Whether the bits of plain averaging are the same for all shapes: every sum is formed in the order of the ranks.
  bool same_bits = false;
  // Returns the buckets of a shape with this cap. Valid during the call of next_shape().
  std::function<BucketPlan(std::size_t cap_bytes)> plan_for;
};

// A hook that chooses the shape. DDP asks the hook itself, not a hook inside of a wrapper.
class ChoosesShape {
 public:
  virtual ~ChoosesShape() = default;
  // Returns the shape of the next iteration: the same on all ranks. DDP calls next_shape() when a synchronized forward
  // pass begins, on the thread of that pass. Parts that DDP cannot change are not used. The method must not call the
  // DDP object. A hook's memory must not depend on the buckets (HookState says how). An exception ends the DDP object.
  virtual ReductionShape next_shape(const ShapeFreedom& freedom) = 0;
};

}  // namespace gradwire

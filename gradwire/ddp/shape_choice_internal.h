// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What a hook may choose of the shape of the reduction, and what it chooses (reduction_shape.h).
#pragma once

#include "gradwire/ddp/bucket_arrangement_internal.h"
#include "gradwire/ddp/comm_hook.h"
#include "gradwire/ddp/reduction_shape.h"

namespace gradwire::internal {

class ShapeChoice final {
 public:
  struct Options {
    bool any = false;        // false: there is nothing to choose: one rank alone, or gradients on devices
    bool free_caps = false;  // the user has given no caps
    bool free_lanes = false;
    int own_lanes = 0;       // as ShapeFreedom
    bool same_bits = false;  // as ShapeFreedom
  };
  explicit ShapeChoice(const Options& options) noexcept : options_(options) {}

  // The shape that `hook` chooses for the next iteration. Parts that it may not choose are 0, and so are all parts for
  // a hook that chooses no shapes, and for null. `on_lanes`: lanes run the hook. Throws what the hook throws. All ranks
  // get the same shape, so they change alike without communication.
  ReductionShape next(CommHook* hook, const BucketArrangement& arrangement, bool on_lanes) const;

 private:
  ShapeFreedom freedom(const CommHook& hook, const BucketArrangement& arrangement, bool on_lanes) const;

  const Options options_;
};

}  // namespace gradwire::internal

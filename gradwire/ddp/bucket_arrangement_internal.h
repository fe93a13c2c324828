// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Which gradients lie in which bucket, and when that changes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "gradwire/ddp/bucket_order_internal.h"
#include "gradwire/ddp/bucket_plan.h"
#include "gradwire/ddp/bucket_store_internal.h"
#include "gradwire/ddp/reduction_report_internal.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// The first iteration only finds the order in which gradients become ready, with one bucket for each dtype and device.
// Then the buckets are cut in that order. An order that was loaded is used from the start. When the order may differ
// in each iteration, there is nothing to find: the buckets are those of the parameters' order. The store gets each plan
// and the report learns of it. Buckets change between iterations only. Not thread-safe: the Reducer's lock guards the
// object.
class BucketArrangement final {
 public:
  // Arranges the first buckets. `caps`: the caps by DDP's options. `finds_order`: the order stays the same in all
  // iterations. `store` and `report` must outlive this object.
  BucketArrangement(BucketStore& store, ReductionReport& report, const BucketCaps& caps, bool finds_order);

  // As BucketOrder::learn() and BucketOrder::load(). `decides`: this rank's order will be that of all ranks. `rank` is
  // for the message.
  void learn(std::span<const std::size_t> parameters, bool decides);
  void load(const std::vector<std::string>& names, int rank);

  // Before an iteration: agrees on the order and arranges the buckets in that order, once there is an order to agree
  // on. `iterations`: the number of iterations that have ended. Returns whether the buckets were arranged. Collective
  // in the call that arranges them; the same call on all ranks.
  bool follow_order(ProcessGroup& control, std::uint32_t iterations);
  // Whether the order of the buckets is agreed on.
  bool is_ordered() const noexcept { return order_.is_agreed(); }
  bool finds_order() const noexcept { return finds_order_; }

  // When the order is agreed on, before an iteration: arranges buckets with this cap, or with the caps by the options
  // when `cap_bytes` is 0. Returns whether the buckets have changed. Not collective.
  bool use_cap(std::size_t cap_bytes);
  // When the order is agreed on: as BucketOrder::planner().
  std::function<BucketPlan(std::size_t cap_bytes)> planner() const { return order_.planner(); }

 private:
  void arrange(BucketPlan plan);

  BucketStore& store_;
  ReductionReport& report_;
  const bool finds_order_;
  BucketOrder order_;
  std::size_t cap_bytes_ = 0;  // as in the last use_cap()
};

}  // namespace gradwire::internal

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/bucket_order_internal.h"

#include <algorithm>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/replica_sync_internal.h"

namespace gradwire::internal {

void BucketOrder::learn(std::span<const std::size_t> parameters) {
  if (!loaded_) parameters_.assign(parameters.begin(), parameters.end());
}

void BucketOrder::load(const std::vector<std::string>& names, const std::vector<std::string>& known, int rank) {
  std::vector<std::int64_t> order;
  for (const std::string& name : names) order.push_back(std::find(known.begin(), known.end(), name) - known.begin());
  std::vector<std::int64_t> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  bool complete = sorted.size() == known.size();
  for (std::size_t i = 0; complete && i < sorted.size(); ++i) complete = sorted[i] == static_cast<std::int64_t>(i);
  if (!complete) {
    throw InvalidArgument(concat("set_bucket_order(): the ", names.size(), " names are not those of the ", known.size(),
                                 " parameters that need a gradient, each once, on rank ", rank,
                                 "; was the order saved from another model?"));
  }
  parameters_ = std::move(order);
  loaded_ = true;
}

void BucketOrder::agree(ProcessGroup& group, std::span<const TensorSpec> specs) {
  parameters_ = broadcast_integers(group, std::move(parameters_));
  std::vector<TensorSpec> ordered;
  for (const std::int64_t number : parameters_) {
    GRADWIRE_CHECK(number >= 0 && static_cast<std::size_t>(number) < specs.size());
    ordered.push_back(specs[static_cast<std::size_t>(number)]);
  }
  ordered_ = std::make_shared<const std::vector<TensorSpec>>(std::move(ordered));
}

std::function<BucketPlan(std::size_t)> BucketOrder::planner() const {
  return [ordered = ordered_, caps = caps_](std::size_t cap_bytes) {
    return plan_buckets(*ordered, cap_bytes == 0 ? caps : BucketCaps{cap_bytes});
  };
}

}  // namespace gradwire::internal

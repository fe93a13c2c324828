// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/bucket_arrangement_internal.h"

#include <utility>

namespace gradwire::internal {

BucketArrangement::BucketArrangement(BucketStore& store, ReductionReport& report, const BucketCaps& caps,
                                     bool finds_order)
    : store_(store), report_(report), finds_order_(finds_order), order_(caps) {
  const BucketCaps first_caps = finds_order_ ? BucketCaps{kUnlimitedBucketBytes} : caps;
  store_.arrange(plan_initial_buckets(store_.specs(), first_caps), /*is_final=*/!finds_order_);
  report_.set_first_plan(store_.plan());
}

void BucketArrangement::learn(std::span<const std::size_t> parameters, bool decides) {
  order_.learn(parameters);
  if (decides && finds_order_) report_.set_next_order(order_.parameters());
}

void BucketArrangement::load(const std::vector<std::string>& names, int rank) {
  std::vector<std::string> known;
  for (std::size_t i = 0; i < store_.parameter_count(); ++i) known.push_back(store_.name(i));
  order_.load(names, known, rank);
  report_.set_next_order(order_.parameters());
}

bool BucketArrangement::follow_order(ProcessGroup& control, std::uint32_t iterations) {
  if (order_.is_agreed() || !(order_.is_loaded() || (finds_order_ && iterations > 0))) return false;
  order_.agree(control, store_.specs());
  arrange(order_.plan());
  return true;
}

bool BucketArrangement::use_cap(std::size_t cap_bytes) {
  if (std::exchange(cap_bytes_, cap_bytes) == cap_bytes) return false;
  BucketPlan plan = order_.plan(cap_bytes);
  if (plan == store_.plan()) return false;
  arrange(std::move(plan));
  return true;
}

void BucketArrangement::arrange(BucketPlan plan) {
  // Gradients may lie in the memory that is cut anew: their values must be kept, and must not become the gradients of
  // other parameters.
  store_.make_gradients_private();
  store_.arrange(std::move(plan), /*is_final=*/true);
  report_.set_rebuilt_plan(store_.plan(), order_.parameters());
}

}  // namespace gradwire::internal

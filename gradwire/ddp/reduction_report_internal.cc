// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/reduction_report_internal.h"

#include <algorithm>
#include <utility>

namespace gradwire::internal {

ReductionReport::ReductionReport(std::vector<Parameter> parameters, std::vector<std::size_t> slot_bytes,
                                 BucketCaps caps)
    : parameters_(std::move(parameters)), slot_bytes_(std::move(slot_bytes)), caps_(std::move(caps)) {}

void ReductionReport::set_hook(const std::string& name, int lanes) {
  MutexLock lock(mutex_);
  hook_ = name;
  lanes_ = lanes;
}

void ReductionReport::set_first_plan(const BucketPlan& plan) {
  MutexLock lock(mutex_);
  first_plan_ = plan;
}

void ReductionReport::set_rebuilt_plan(const BucketPlan& plan, const std::vector<std::int64_t>& order) {
  MutexLock lock(mutex_);
  rebuilt_plan_ = plan;
  bucket_order_ = names_of({order.begin(), order.end()});
}

void ReductionReport::set_next_order(const std::vector<std::int64_t>& order) {
  MutexLock lock(mutex_);
  next_order_ = names_of({order.begin(), order.end()});
}

void ReductionReport::end_iteration(const DdpTimes* times, const std::vector<std::size_t>& order,
                                    const std::vector<std::size_t>& unused) {
  MutexLock lock(mutex_);
  ++iterations_;
  unused_ = unused;
  order_ = order;
  if (times == nullptr) return;
  last_times_ = *times;
  total_times_.forward_compute += times->forward_compute;
  total_times_.backward_compute += times->backward_compute;
  total_times_.backward_comm += times->backward_comm;
  total_times_.backward_compute_comm_overlap += times->backward_compute_comm_overlap;
  ++timed_;
}

std::uint32_t ReductionReport::iterations() const {
  MutexLock lock(mutex_);
  return iterations_;
}

BucketPlan ReductionReport::plan() const {
  MutexLock lock(mutex_);
  return rebuilt_plan_.empty() ? first_plan_ : rebuilt_plan_;
}

std::vector<std::string> ReductionReport::bucket_order() const {
  MutexLock lock(mutex_);
  return bucket_order_;
}

std::vector<std::string> ReductionReport::next_bucket_order() const {
  MutexLock lock(mutex_);
  return bucket_order_.empty() ? next_order_ : bucket_order_;
}

std::vector<std::size_t> ReductionReport::bytes_of(const BucketPlan& plan) const {
  std::vector<std::size_t> sizes;
  for (const std::vector<std::size_t>& bucket : plan) {
    std::size_t bytes = 0;
    for (const std::size_t parameter : bucket) bytes += slot_bytes_[parameter];
    sizes.push_back(bytes);
  }
  return sizes;
}

std::vector<std::string> ReductionReport::names_of(const std::vector<std::size_t>& parameters) const {
  std::vector<std::string> names;
  for (const std::size_t parameter : parameters) names.push_back(parameters_[parameter].name);
  return names;
}

void ReductionReport::fill(DdpLoggingData& data) const {
  data.num_parameter_tensors = parameters_.size();
  for (const Parameter& parameter : parameters_) {
    data.total_parameter_size_bytes += parameter.bytes;
    if (std::find(data.dtypes.begin(), data.dtypes.end(), parameter.dtype) == data.dtypes.end())
      data.dtypes.push_back(parameter.dtype);
  }
  data.bucket_cap_bytes = caps_;
  MutexLock lock(mutex_);
  data.comm_hook = hook_;
  data.lanes = lanes_;
  data.bucket_sizes = bytes_of(first_plan_);
  data.rebuilt_bucket_sizes = bytes_of(rebuilt_plan_);
  data.has_rebuilt_buckets = !rebuilt_plan_.empty();
  for (const auto& bucket : rebuilt_plan_.empty() ? first_plan_ : rebuilt_plan_)
    data.bucket_parameters.push_back(names_of(bucket));
  data.bucket_order = bucket_order_;
  data.prev_iteration_grad_ready_order = names_of(order_);
  data.unused_parameters = names_of(unused_);
  for (const std::size_t parameter : unused_) data.unused_parameter_size_bytes += parameters_[parameter].bytes;
  data.num_iterations = iterations_;
  data.last = last_times_;
  if (timed_ == 0) return;
  data.average.forward_compute = total_times_.forward_compute / timed_;
  data.average.backward_compute = total_times_.backward_compute / timed_;
  data.average.backward_comm = total_times_.backward_comm / timed_;
  data.average.backward_compute_comm_overlap = total_times_.backward_compute_comm_overlap / timed_;
}

}  // namespace gradwire::internal

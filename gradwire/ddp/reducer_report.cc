// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What the Reducer knows of itself.
#include <algorithm>

#include "gradwire/base/error.h"
#include "gradwire/ddp/reducer_internal.h"

namespace gradwire::internal {

std::vector<std::size_t> Reducer::bucket_sizes() const {
  const std::vector<TensorSpec> specs = store_.specs();
  std::vector<std::size_t> sizes;
  for (std::size_t bucket = 0; bucket < store_.bucket_count(); ++bucket) {
    std::size_t bytes = 0;
    for (const std::size_t parameter : store_.members(bucket)) bytes += specs[parameter].bytes;
    sizes.push_back(bytes);
  }
  return sizes;
}

// An iteration that this rank only shadowed has no times of its own.
void Reducer::count_times() {
  if (joined_) return;
  Clock::time_point end = marks_.first_launch;
  for (const Flight& flight : flights_) end = std::max(end, flight.end);
  const bool communicated = !idle() && !flights_.empty();
  last_times_.forward_compute = marks_.backward - marks_.forward;
  last_times_.backward_compute = marks_.last_gradient - marks_.backward;
  last_times_.backward_comm = communicated ? end - marks_.first_launch : Clock::duration{0};
  last_times_.backward_compute_comm_overlap =
      communicated ? std::min(end, marks_.last_gradient) - marks_.first_launch : Clock::duration{0};
  total_times_.forward_compute += last_times_.forward_compute;
  total_times_.backward_compute += last_times_.backward_compute;
  total_times_.backward_comm += last_times_.backward_comm;
  total_times_.backward_compute_comm_overlap += last_times_.backward_compute_comm_overlap;
  ++timed_;
}

void Reducer::describe_parameters(DdpLoggingData& data) const {
  data.num_parameter_tensors = store_.parameter_count();
  for (std::size_t i = 0; i < store_.parameter_count(); ++i) {
    const at::ScalarType dtype = store_.dtype(i);
    data.total_parameter_size_bytes += static_cast<std::size_t>(store_.parameter(i).numel()) * c10::elementSize(dtype);
    const std::string name = c10::toString(dtype);
    if (std::find(data.dtypes.begin(), data.dtypes.end(), name) == data.dtypes.end()) data.dtypes.push_back(name);
  }
}

void Reducer::report(DdpLoggingData& data) const {
  {
    MutexLock lock(mutex_);
    if (hook_ != nullptr) data.comm_hook = hook_->traits().name;
    data.lanes = usable_lanes();
    data.bucket_cap_bytes = {options_.caps.front(), options_.caps.back()};
    data.bucket_sizes = first_bucket_sizes_;
    if (rebuilt_) data.rebuilt_bucket_sizes = bucket_sizes();
    data.has_rebuilt_buckets = rebuilt_;
    for (std::size_t bucket = 0; bucket < store_.bucket_count(); ++bucket) {
      auto& names = data.bucket_parameters.emplace_back();
      for (const std::size_t parameter : store_.members(bucket)) names.push_back(store_.name(parameter));
    }
    for (const std::size_t parameter : last_gradient_order_) {
      data.prev_iteration_grad_ready_order.push_back(store_.name(parameter));
    }
    for (const std::size_t parameter : use_.unused()) {
      data.unused_parameters.push_back(store_.name(parameter));
      data.unused_parameter_size_bytes += store_.parameter(parameter).nbytes();
    }
    data.num_iterations = iteration_;
    data.last = last_times_;
    if (timed_ > 0) {
      data.average.forward_compute = total_times_.forward_compute / timed_;
      data.average.backward_compute = total_times_.backward_compute / timed_;
      data.average.backward_comm = total_times_.backward_comm / timed_;
      data.average.backward_compute_comm_overlap = total_times_.backward_compute_comm_overlap / timed_;
    }
  }
  data.bucket_order = bucket_order();
  data.payload_bytes = payload_bytes();
  MutexLock lock(failure_mutex_);
  if (failure_ == nullptr) return;
  try {
    std::rethrow_exception(failure_);
  } catch (const std::exception& error) {
    data.error = describe(error);
  } catch (...) {
    data.error = "an exception that is no std::exception";
  }
}

}  // namespace gradwire::internal

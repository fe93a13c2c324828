// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/logging_data.h"

#include "gradwire/base/strings.h"

namespace gradwire {
namespace {

using Map = std::map<std::string, std::string>;

std::string join_sizes(const std::vector<std::size_t>& sizes) {
  std::vector<std::string> parts;
  for (const std::size_t size : sizes) parts.push_back(std::to_string(size));
  return join(parts, ", ");
}

void add_times(Map& map, const std::string& prefix, const DdpTimes& times) {
  map[prefix + "forward_compute_time"] = std::to_string(times.forward_compute.count());
  map[prefix + "backward_compute_time"] = std::to_string(times.backward_compute.count());
  map[prefix + "backward_comm_time"] = std::to_string(times.backward_comm.count());
  map[prefix + "backward_compute_comm_overlap_time"] = std::to_string(times.backward_compute_comm_overlap.count());
}

void add_options(Map& map, const DdpLoggingData& data) {
  const auto flag = [](bool on) { return std::string(on ? "1" : "0"); };
  map["broadcast_buffers"] = flag(data.broadcast_buffers);
  map["gradient_as_bucket_view"] = flag(data.gradient_as_bucket_view);
  map["find_unused_parameters"] = flag(data.find_unused_parameters);
  map["static_graph"] = flag(data.static_graph);
  map["mixed_precision"] = flag(data.mixed_precision);
  map["join_uneven_inputs"] = flag(data.join_uneven_inputs);
  map["has_rebuilt_buckets"] = flag(data.has_rebuilt_buckets);
  map["bucket_cap_bytes"] = join_sizes(data.bucket_cap_bytes);
  map["ignored_parameters"] = join(data.ignored_parameters, ", ");
}

}  // namespace

Map DdpLoggingData::as_map() const {
  Map map;
  map["rank"] = std::to_string(rank);
  map["world_size"] = std::to_string(world_size);
  map["backend_name"] = backend_name;
  map["module_name"] = module_name;
  map["comm_hook"] = comm_hook;
  map["lanes"] = std::to_string(lanes);
  add_options(map, *this);
  map["num_parameter_tensors"] = std::to_string(num_parameter_tensors);
  map["total_parameter_size_bytes"] = std::to_string(total_parameter_size_bytes);
  map["dtypes"] = join(dtypes, ", ");
  map["bucket_sizes"] = join_sizes(bucket_sizes);
  map["rebuilt_bucket_sizes"] = join_sizes(rebuilt_bucket_sizes);
  std::vector<std::string> buckets;
  for (const auto& names : bucket_parameters) buckets.push_back(join(names, " "));
  map["rebuilt_per_bucket_param_names"] = join(buckets, ", ");
  map["bucket_order"] = join(bucket_order, ", ");
  map["prev_iteration_grad_ready_order"] = join(prev_iteration_grad_ready_order, ", ");
  map["unused_parameters"] = join(unused_parameters, ", ");
  map["unused_parameter_size"] = std::to_string(unused_parameter_size_bytes);
  map["num_iterations"] = std::to_string(num_iterations);
  map["payload_bytes"] = std::to_string(payload_bytes);
  add_times(map, "", last);
  add_times(map, "avg_", average);
  map["error"] = error;
  return map;
}

}  // namespace gradwire

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/ddp_options_internal.h"

#include <algorithm>
#include <functional>
#include <optional>

#include "gradwire/base/error.h"
#include "gradwire/base/stable_hash.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/changing_ranks.h"
#include "gradwire/process_group/hybrid/hybrid_group.h"
#include "gradwire/process_group/staged_call_internal.h"

namespace gradwire::internal {
namespace {

using Names = std::vector<std::string>;

bool is_float(at::ScalarType dtype) {
  return dtype == at::kHalf || dtype == at::kBFloat16 || dtype == at::kFloat || dtype == at::kDouble;
}

void require_float(const std::optional<at::ScalarType>& dtype, const char* name) {
  if (!dtype || is_float(*dtype)) return;
  throw InvalidArgument(concat("DistributedDataParallel: ", name, " of mixed_precision is ", *dtype,
                               "; it must be Half, BFloat16, Float or Double."));
}

// A number by which ranks compare names. The same in all builds of gradwire.
std::int64_t hash_of(const Names& names) { return static_cast<std::int64_t>(stable_hash(join(names, "\n")) >> 1); }

Names spelled(const BucketCaps& caps) {
  Names all;
  for (const std::size_t cap : caps) all.push_back(std::to_string(cap));
  return all;
}

std::int64_t number_of(const std::optional<MixedPrecision>& types) {
  if (!types) return 0;
  std::int64_t number = 1;
  for (const auto& dtype : {types->param_dtype, types->reduce_dtype, types->buffer_dtype}) {
    number = number * 256 + (dtype ? static_cast<std::int64_t>(*dtype) + 1 : 0);
  }
  return number;
}

// "name = true"
std::function<std::string(std::int64_t)> flag(const char* name) {
  return [name](std::int64_t value) { return concat(name, " = ", value != 0 ? "true" : "false"); };
}

std::string describe_graph(std::int64_t value) {
  switch (static_cast<GraphKind>(value)) {
    case GraphKind::fixed:
      return "static_graph = true";
    case GraphKind::searched:
      return "find_unused_parameters = true";
    default:
      return "neither static_graph nor find_unused_parameters";
  }
}

std::string describe_lanes(std::int64_t value) { return value == 1 ? "1 lane" : concat(value, " lanes"); }

std::string describe_forward_sync(std::int64_t value) {
  return value < 0 ? "no forward_sync_buffers" : flag("forward_sync_buffers")(value);
}

// The other way round than number_of().
std::string describe_types(std::int64_t value) {
  if (value == 0) return "no mixed_precision";
  std::vector<std::string> parts;
  int shift = 16;
  for (const char* name : {"param_dtype", "reduce_dtype", "buffer_dtype"}) {
    const std::int64_t code = value >> shift & 255;
    if (code != 0) parts.push_back(concat(name, " = ", static_cast<at::ScalarType>(code - 1)));
    shift -= 8;
  }
  return parts.empty() ? "mixed_precision without a dtype" : concat("mixed_precision of ", join(parts, ", "));
}

std::size_t bytes_of_cap(const char* what, double mib) {
  const double bytes = mib * 1024 * 1024;
  if (bytes >= 1 && bytes < 0x1p62) return static_cast<std::size_t>(bytes);
  throw InvalidArgument(
      concat("DistributedDataParallel: ", what, " = ", mib, "; it must be a positive number of MiB."));
}

std::string describe_cap(const char* which, std::int64_t bytes) {
  return concat("bucket_cap_mb that limits the ", which, " to ", bytes, " bytes");
}

// Ranks compare hashes.
NamedSetting list_setting(const char* list, Names names) {
  const std::int64_t hash = hash_of(names);
  return {hash, [list](std::int64_t value) { return concat("names in ", list, " whose hash is ", value); }, list,
          std::move(names)};
}

// The order of these names changes nothing.
Names in_order(Names names) {
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

std::string describe_place(std::int64_t type) {
  return concat("parameters on devices of type ", c10::DeviceTypeName(static_cast<c10::DeviceType>(type), true));
}

}  // namespace

int automatic_lanes(const ProcessGroup& group) {
  const auto* const hosts = dynamic_cast<const HybridGroup*>(&group);
  return hosts != nullptr && hosts->hosts() > 1 ? 2 : 1;
}

bool sums_in_one_order(const ProcessGroup& group) {
  // A group whose ranks change may have three hosts later.
  if (dynamic_cast<const ChangingRanks*>(&group) != nullptr || !group.multiplies_as_it_sums()) return false;
  const auto* const hybrid = dynamic_cast<const HybridGroup*>(&group);
  // The order of two hosts makes no difference. cross() is there on all ranks where hosts have the same number of
  // ranks.
  if (hybrid == nullptr || hybrid->hosts() <= 2) return true;
  std::vector<int> ranks(static_cast<std::size_t>(hybrid->hosts()), 0);
  for (int rank = 0; rank < group.size(); ++rank) ++ranks[static_cast<std::size_t>(hybrid->host_of(rank))];
  const bool even = std::all_of(ranks.begin(), ranks.end(), [&](int count) { return count == ranks.front(); });
  return even && hybrid->cross()->multiplies_as_it_sums();
}

bool needs_one_thread(const std::vector<NamedTensor>& parameters, const ProcessGroup& group) {
  return std::any_of(parameters.begin(), parameters.end(), [&](const NamedTensor& each) {
    return !each.tensor.is_cpu() && !stages(group, each.tensor.device().type());
  });
}

ReducerOptions reducer_options(const DdpOptions& options) {
  if (options.lanes < -1 || options.lanes > kMaxLanes) {
    throw InvalidArgument(concat("DistributedDataParallel: lanes = ", options.lanes, "; it must be 0 to ", kMaxLanes,
                                 ", or -1 for automatic."));
  }
  ReducerOptions out;
  out.gradient_as_bucket_view = options.gradient_as_bucket_view;
  out.graph = options.static_graph             ? internal::GraphKind::fixed
              : options.find_unused_parameters ? internal::GraphKind::searched
                                               : internal::GraphKind::every_parameter;
  if (options.lanes != -1) out.lanes = options.lanes;
  out.free_lanes = options.lanes == -1;
  out.free_caps = !options.bucket_cap_mb && options.bucket_caps_mb.empty();
  if (options.mixed_precision) {
    require_float(options.mixed_precision->param_dtype, "param_dtype");
    require_float(options.mixed_precision->reduce_dtype, "reduce_dtype");
    require_float(options.mixed_precision->buffer_dtype, "buffer_dtype");
    out.bucket_dtype = options.mixed_precision->reduce_dtype;
    if (!out.bucket_dtype) out.bucket_dtype = options.mixed_precision->param_dtype;
  }
  if (options.bucket_cap_mb) out.caps = bucket_caps(bytes_of_cap("bucket_cap_mb", *options.bucket_cap_mb));
  if (options.bucket_caps_mb.empty()) return out;
  if (options.bucket_cap_mb) {
    throw InvalidArgument("DistributedDataParallel: give bucket_cap_mb or a cap for each bucket, not both.");
  }
  out.caps.clear();
  for (const double cap : options.bucket_caps_mb) out.caps.push_back(bytes_of_cap("a cap of a bucket", cap));
  return out;
}

void require_names(const torch::nn::Module& module, const DdpOptions& options) {
  const auto parameters = module.named_parameters();
  const auto buffers = module.named_buffers();
  for (const std::string& name : options.parameters_and_buffers_to_ignore) {
    if (parameters.contains(name) || buffers.contains(name)) continue;
    throw InvalidArgument(concat("DistributedDataParallel: parameters_and_buffers_to_ignore names '", name,
                                 "', which is no parameter or buffer of the module."));
  }
  Names needed = options.delay_all_reduce_named_params;
  if (needed.empty() && options.param_to_hook_all_reduce.empty()) return;
  needed.push_back(options.param_to_hook_all_reduce);
  for (const std::string& name : needed) {
    if (parameters.contains(name) && parameters[name].requires_grad()) continue;
    throw InvalidArgument(concat("DistributedDataParallel: delay_all_reduce_named_params or param_to_hook_all_reduce ",
                                 "names '", name, "', which is no parameter of the module that needs a gradient."));
  }
  for (const std::string& name : options.delay_all_reduce_named_params) {
    for (const std::string& other : options.parameters_and_buffers_to_ignore) {
      if (!parameters.contains(other) || !parameters[other].is_same(parameters[name])) continue;
      throw InvalidArgument(concat("DistributedDataParallel: delay_all_reduce_named_params names '", name,
                                   "', and parameters_and_buffers_to_ignore names ",
                                   other == name ? "it too" : concat("the same parameter as '", other, "'"),
                                   ". Leave it out of the first, and it is not averaged, or out of the second."));
    }
  }
  if (options.delay_all_reduce_named_params.empty()) {
    throw InvalidArgument(
        "DistributedDataParallel: param_to_hook_all_reduce is given without delay_all_reduce_named_params.");
  }
}

std::vector<NamedSetting> settings_of(const DdpOptions& options, const ReducerOptions& tuned, c10::DeviceType place) {
  Names delayed = options.delay_all_reduce_named_params;
  delayed.push_back(options.param_to_hook_all_reduce);
  const auto sync = options.forward_sync_buffers;
  return {
      {tuned.gradient_as_bucket_view ? 1 : 0, flag("gradient_as_bucket_view")},
      {tuned.lanes, describe_lanes},
      {static_cast<std::int64_t>(tuned.graph), describe_graph},
      {static_cast<std::int64_t>(tuned.caps.front()), [](auto bytes) { return describe_cap("first bucket", bytes); }},
      {static_cast<std::int64_t>(tuned.caps.back()), [](auto bytes) { return describe_cap("later buckets", bytes); }},
      {hash_of(spelled(tuned.caps)), [](auto hash) { return concat("caps of the buckets whose hash is ", hash); }},
      {options.broadcast_buffers ? 1 : 0, flag("broadcast_buffers")},
      {sync ? (*sync ? 1 : 0) : -1, describe_forward_sync},
      {number_of(options.mixed_precision), describe_types},
      list_setting("parameters_and_buffers_to_ignore", in_order(options.parameters_and_buffers_to_ignore)),
      list_setting("delay_all_reduce_named_params and param_to_hook_all_reduce", std::move(delayed)),
      {static_cast<std::int64_t>(place), describe_place}};
}

}  // namespace gradwire::internal

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/hooks/registry.h"

#include <algorithm>
#include <array>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/nearest.h"
#include "gradwire/base/options.h"
#include "gradwire/base/strings.h"
#include "gradwire/compress/compressor.h"
#include "gradwire/hooks/auto_hook.h"
#include "gradwire/hooks/compress_wrappers.h"
#include "gradwire/hooks/compressed_hook.h"
#include "gradwire/hooks/debugging_hooks.h"
#include "gradwire/hooks/default_hooks.h"
#include "gradwire/hooks/policy_hook.h"
#include "gradwire/hooks/power_sgd.h"
#include "gradwire/hooks/quantization_hooks.h"
#include "gradwire/hooks/wrapper_internal.h"

namespace gradwire {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

struct HookEntry {
  HookInfo info;
  std::shared_ptr<CommHook> (*make)(Group group, Options& options);
};

template <std::shared_ptr<CommHook> (*kMake)(Group)>
std::shared_ptr<CommHook> without_options(Group group, Options&) {
  return kMake(std::move(group));
}

std::shared_ptr<CommHook> make_noop(Group, Options&) { return make_noop_hook(); }

template <std::int64_t kRank, bool kBatched>
std::shared_ptr<CommHook> make_power(Group group, Options& options) {
  PowerSGDOptions made;
  made.matrix_approximation_rank = options.number("rank", kRank);
  made.start_iteration = options.number("start", made.start_iteration);
  made.min_compression_rate = options.number("min_rate", made.min_compression_rate);
  made.use_error_feedback = options.flag("error_feedback", made.use_error_feedback);
  made.warm_start = options.flag("warm_start", made.warm_start);
  made.orthogonalization_epsilon = options.number("epsilon", made.orthogonalization_epsilon);
  made.random_seed = options.number("seed", made.random_seed);
  made.compression_stats_logging_frequency = options.number("log_every", made.compression_stats_logging_frequency);
  made.batch_tensors_with_same_shape = options.flag("same_shape", made.batch_tensors_with_same_shape);
  return kBatched ? make_batched_power_sgd_hook(made, std::move(group)) : make_power_sgd_hook(made, std::move(group));
}

constexpr std::string_view kPowerSgdOptions =
    "rank=1,start=1000,min_rate=2,error_feedback=1,warm_start=1,epsilon=0,seed=0,log_every=10000,same_shape=0";
constexpr std::string_view kPowerSgd2Options =
    "rank=2,start=1000,min_rate=2,error_feedback=1,warm_start=1,epsilon=0,seed=0,log_every=10000,same_shape=0";
constexpr std::string_view kPowerSgdPaper = "Vogels et al. 2019";
constexpr std::string_view kAllReduce4 = "2(N-1)/N * 4n";
constexpr std::string_view kAllReduce2 = "2(N-1)/N * 2n";

// PyTorch's hooks, one line each, in the order of the enumerators.
constexpr std::array kHooks{
    HookEntry{{"allreduce", "", kAllReduce4, ""}, without_options<make_allreduce_hook>},
    HookEntry{{"fp16_compress", "", kAllReduce2, ""}, without_options<make_fp16_compress_hook>},
    HookEntry{{"bf16_compress", "", kAllReduce2, ""}, without_options<make_bf16_compress_hook>},
    HookEntry{{"quantize_per_tensor", "", "(N-1) * (n + 5)", ""}, without_options<make_quantization_pertensor_hook>},
    HookEntry{{"quantize_per_channel", "", "(N-1) * (n + 5 ceil(n/512))", ""},
              without_options<make_quantization_perchannel_hook>},
    HookEntry{{"power_sgd", kPowerSgdOptions, "2(N-1)/N * 4 rank (rows + columns)", kPowerSgdPaper},
              make_power<1, false>},
    HookEntry{{"power_sgd_rank2", kPowerSgd2Options, "2(N-1)/N * 4 rank (rows + columns)", kPowerSgdPaper},
              make_power<2, false>},
    HookEntry{{"batched_power_sgd", kPowerSgdOptions, "2(N-1)/N * 8 rank sqrt(n)", kPowerSgdPaper},
              make_power<1, true>},
    HookEntry{{"batched_power_sgd_rank2", kPowerSgd2Options, "2(N-1)/N * 8 rank sqrt(n)", kPowerSgdPaper},
              make_power<2, true>},
    HookEntry{{"noop", "", "0", ""}, make_noop},
};

const std::vector<std::string> kVectors{"compressed", "plain"};
const std::vector<std::string> kWraps{"none", "fp16", "bf16"};
constexpr std::string_view kPolicyOptions = "warm_up=0,min=0,wrap=none|fp16|bf16";

// `chosen`: the options whose names are in the given list. `rest`: the other options. Both are text.
struct SplitOptions {
  std::string chosen;
  std::string rest;
};
SplitOptions split_options(std::string_view text, std::initializer_list<std::string_view> keys) {
  SplitOptions split;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const std::string_view option = text.substr(0, comma);
    const std::string_view key = split_name(option.substr(0, option.find('='))).name;
    std::string& part = std::find(keys.begin(), keys.end(), key) != keys.end() ? split.chosen : split.rest;
    if (!part.empty()) part += ',';
    part += option;
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return split;
}

bool is_compressor(std::string_view name) {
  const auto& known = compress::known_compressors();
  return std::any_of(known.begin(), known.end(), [&](const auto& info) { return info.name == name; });
}

std::shared_ptr<CommHook> make_compressed(std::string_view name, std::string_view text, Group group) {
  const SplitOptions split = split_options(text, {"vectors"});
  Options options(concat("hook ", name), split.chosen);
  CompressedHookOptions made;
  made.plain_vectors = options.choice("vectors", kVectors) == 1;
  return make_compressed_hook(split.rest.empty() ? std::string(name) : concat(name, ":", split.rest), made,
                              std::move(group));
}

constexpr HookInfo kAuto{"auto", "accuracy=rounding|exact|any,gain=0.01,shape=chosen|own",
                         "those of the hook that it chooses", ""};
const std::vector<std::string> kAccuracies{"rounding", "exact", "any"};
const std::vector<std::string> kWhoseShape{"chosen", "own"};

std::shared_ptr<CommHook> make_auto(std::string_view text, Group group) {
  constexpr std::array kMeanings{HookAccuracy::rounding, HookAccuracy::exact, HookAccuracy::any};
  Options options("hook auto", text);
  AutoHookOptions made;
  made.accuracy = kMeanings.at(options.choice("accuracy", kAccuracies));
  made.gain = options.number("gain", made.gain);
  made.shape = options.choice("shape", kWhoseShape) == 0;
  options.require_all_taken(kAuto.options);
  return make_auto_hook(made, std::move(group));
}

std::shared_ptr<CommHook> make_named(std::string_view name, std::string_view text, Group group) {
  const auto* entry =
      std::find_if(kHooks.begin(), kHooks.end(), [&](const auto& one) { return one.info.name == name; });
  if (entry != kHooks.end()) {
    Options options(concat("hook ", name), text);
    auto hook = entry->make(std::move(group), options);
    options.require_all_taken(concat(entry->info.options, entry->info.options.empty() ? "" : ",", kPolicyOptions));
    return hook;
  }
  if (name == kAuto.name) return make_auto(text, std::move(group));
  if (is_compressor(name)) return make_compressed(name, text, std::move(group));
  throw InvalidArgument(concat("There is no hook '", name, "'", did_you_mean(name, hook_names()),
                               "; the hooks are: ", join(hook_names(), ", "), "."));
}

// Whether the hook compresses, so that it runs between hosts where the group has hosts. With a cast (wrap=) every hook
// does. The hooks that "auto" chooses from see to that themselves.
bool compresses(std::string_view name, std::size_t wrap) {
  return wrap != 0 || (name != "allreduce" && name != "noop" && name != kAuto.name);
}

}  // namespace

std::string_view name_of(DDPCommHookType type) noexcept { return kHooks[static_cast<std::size_t>(type)].info.name; }

std::shared_ptr<CommHook> make_hook(DDPCommHookType type, Group group) {
  return make_hook(name_of(type), std::move(group));
}

std::shared_ptr<CommHook> make_hook(std::string_view spec, Group group) {
  const NamedOptions parts = split_name(spec);
  const SplitOptions split = split_options(parts.options, {"warm_up", "min", "wrap"});
  Options options(concat("hook ", parts.name), split.chosen);
  PolicyOptions policy;
  policy.warm_up = options.number("warm_up", policy.warm_up);
  policy.min_bytes = options.byte_size("min", policy.min_bytes);
  const std::size_t wrap = options.choice("wrap", kWraps);
  options.require_all_taken(kPolicyOptions);
  const bool between_hosts = compresses(parts.name, wrap);
  std::shared_ptr<CommHook> hook = make_named(parts.name, split.rest, between_hosts ? nullptr : group);
  if (wrap == 1) hook = make_fp16_compress_wrapper(std::move(hook));
  if (wrap == 2) hook = make_bf16_compress_wrapper(std::move(hook));
  if (between_hosts) hook = internal::make_between_hosts_hook_of_registry(std::move(hook), group);
  if (policy.warm_up > 0 || policy.min_bytes > 0) hook = make_policy_hook(std::move(hook), policy, std::move(group));
  return hook;
}

std::vector<std::string> hook_names() {
  std::vector<std::string> names;
  for (const HookInfo& info : known_hooks()) names.emplace_back(info.name);
  return names;
}

const std::vector<HookInfo>& known_hooks() {
  static const std::vector<HookInfo> infos = [] {
    std::vector<HookInfo> list;
    for (const HookEntry& entry : kHooks) list.push_back(entry.info);
    list.push_back(kAuto);
    for (const compress::CompressorInfo& info : compress::known_compressors()) {
      list.push_back({info.name, info.options, info.bytes, info.paper});
    }
    return list;
  }();
  return infos;
}

}  // namespace gradwire

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/hooks/registry.h"

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/hooks/debugging_hooks.h"
#include "gradwire/hooks/default_hooks.h"
#include "gradwire/hooks/quantization_hooks.h"

namespace gradwire {
namespace {

using Options = std::map<std::string, std::string, std::less<>>;

struct HookEntry {
  DDPCommHookType type;
  std::string_view name;
  std::span<const std::string_view> options;  // the words that may stand before '='
  std::shared_ptr<CommHook> (*make)(std::shared_ptr<ProcessGroup> group,
                                    const Options& options);  // null: of a later version
};

template <std::shared_ptr<CommHook> (*kMake)(std::shared_ptr<ProcessGroup>)>
std::shared_ptr<CommHook> without_options(std::shared_ptr<ProcessGroup> group, const Options&) {
  return kMake(std::move(group));
}

std::shared_ptr<CommHook> make_noop(std::shared_ptr<ProcessGroup>, const Options&) { return make_noop_hook(); }

// A hook is one line here. In the order of the enumerators.
constexpr std::array kHooks{
    HookEntry{DDPCommHookType::ALLREDUCE, "allreduce", {}, without_options<make_allreduce_hook>},
    HookEntry{DDPCommHookType::FP16_COMPRESS, "fp16_compress", {}, without_options<make_fp16_compress_hook>},
    HookEntry{DDPCommHookType::BF16_COMPRESS, "bf16_compress", {}, without_options<make_bf16_compress_hook>},
    HookEntry{DDPCommHookType::QUANTIZE_PER_TENSOR,
              "quantize_per_tensor",
              {},
              without_options<make_quantization_pertensor_hook>},
    HookEntry{DDPCommHookType::QUANTIZE_PER_CHANNEL,
              "quantize_per_channel",
              {},
              without_options<make_quantization_perchannel_hook>},
    HookEntry{DDPCommHookType::POWER_SGD, "power_sgd", {}, nullptr},
    HookEntry{DDPCommHookType::POWER_SGD_RANK2, "power_sgd_rank2", {}, nullptr},
    HookEntry{DDPCommHookType::BATCHED_POWER_SGD, "batched_power_sgd", {}, nullptr},
    HookEntry{DDPCommHookType::BATCHED_POWER_SGD_RANK2, "batched_power_sgd_rank2", {}, nullptr},
    HookEntry{DDPCommHookType::NOOP, "noop", {}, make_noop},
};

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

const HookEntry& find(std::string_view name) {
  const auto entry = std::find_if(kHooks.begin(), kHooks.end(), [&](const HookEntry& one) { return one.name == name; });
  if (entry == kHooks.end())
    throw InvalidArgument(concat("There is no hook '", name, "'; the hooks are: ", join(hook_names(), ", "), "."));
  return *entry;
}

void require_known(const HookEntry& entry, std::string_view option) {
  if (std::find(entry.options.begin(), entry.options.end(), option) != entry.options.end()) return;
  const std::vector<std::string> known(entry.options.begin(), entry.options.end());
  throw InvalidArgument(
      concat("The hook '", entry.name, "' has no option '", option, "'; ",
             known.empty() ? std::string("it has none") : concat("its options are: ", join(known, ", ")), "."));
}

// "a=1, b=2" after the colon.
Options parse_options(const HookEntry& entry, std::string_view text) {
  Options options;
  while (true) {
    const auto comma = text.find(',');
    const std::string_view item = trimmed(text.substr(0, comma));
    const auto equals = item.find('=');
    const std::string_view key = trimmed(item.substr(0, equals));
    const std::string_view value =
        equals == std::string_view::npos ? std::string_view{} : trimmed(item.substr(equals + 1));
    if (key.empty() || value.empty()) {
      throw InvalidArgument(concat("The options of the hook '", entry.name,
                                   "' must look like key=value, separated by commas; got '", item, "'."));
    }
    require_known(entry, key);
    if (!options.emplace(key, value).second)
      throw InvalidArgument(concat("The option '", key, "' of the hook '", entry.name, "' is given twice."));
    if (comma == std::string_view::npos) return options;
    text.remove_prefix(comma + 1);
  }
}

std::shared_ptr<CommHook> make(const HookEntry& entry, std::shared_ptr<ProcessGroup> group, const Options& options) {
  if (entry.make == nullptr) {
    throw UnsupportedError(concat("The hook '", entry.name, "' is not available in this version; the hooks are: ",
                                  join(hook_names(), ", "), "."));
  }
  return entry.make(std::move(group), options);
}

}  // namespace

std::string_view name_of(DDPCommHookType type) noexcept { return kHooks[static_cast<std::size_t>(type)].name; }

std::shared_ptr<CommHook> make_hook(DDPCommHookType type, std::shared_ptr<ProcessGroup> group) {
  return make(kHooks[static_cast<std::size_t>(type)], std::move(group), {});
}

std::shared_ptr<CommHook> make_hook(std::string_view spec, std::shared_ptr<ProcessGroup> group) {
  const auto colon = spec.find(':');
  const HookEntry& entry = find(trimmed(spec.substr(0, colon)));
  if (entry.make == nullptr || colon == std::string_view::npos) return make(entry, std::move(group), {});
  return make(entry, std::move(group), parse_options(entry, spec.substr(colon + 1)));
}

std::vector<std::string> hook_names() {
  std::vector<std::string> names;
  for (const HookEntry& entry : kHooks) {
    if (entry.make != nullptr) names.emplace_back(entry.name);
  }
  return names;
}

}  // namespace gradwire

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/hook_state.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/hook_estimates_internal.h"

namespace gradwire {
namespace {

constexpr std::string_view kLocal = "local/";
constexpr const char* kCount = "hook_state_entries";

bool is_local(const std::string& key) { return key.starts_with(kLocal); }

// An archive's own keys are names of attributes: no dots, as parameters have.
std::string key_of(std::int64_t index) { return concat("key", index); }
std::string value_of(std::int64_t index) { return concat("value", index); }

HookState part_of(const HookState& state, bool local) {
  HookState part;
  for (const auto& [key, value] : state) {
    if (is_local(key) == local) part.emplace(key, value);
  }
  return part;
}

c10::IValue read(torch::serialize::InputArchive& archive, const std::string& key) {
  c10::IValue value;
  if (!archive.try_read(key, value)) {
    throw InvalidArgument(concat("The archive has no '", key, "'; it holds no hook's state, or is damaged."));
  }
  return value;
}

const at::Tensor& summand(const std::string& key, const c10::IValue& value) {
  if (!value.isTensor() || !value.toTensor().is_floating_point()) {
    throw InvalidArgument(concat("average_local(): '", key, "' is no tensor of a floating-point type."));
  }
  return value.toTensor();
}

}  // namespace

void save_hook_state(const HookState& state, torch::serialize::OutputArchive& archive) {
  archive.write(kCount, c10::IValue(static_cast<std::int64_t>(state.size())));
  std::int64_t index = 0;
  for (const auto& [key, value] : state) {
    archive.write(key_of(index), c10::IValue(key));
    archive.write(value_of(index), value);
    ++index;
  }
}

HookState load_hook_state(torch::serialize::InputArchive& archive) {
  const c10::IValue count = read(archive, kCount);
  if (!count.isInt()) throw InvalidArgument(concat("'", kCount, "' in the archive is no number; it is damaged."));
  HookState state;
  for (std::int64_t index = 0; index < count.toInt(); ++index) {
    const c10::IValue key = read(archive, key_of(index));
    if (!key.isString()) throw InvalidArgument(concat("'", key_of(index), "' in the archive is no text."));
    state.emplace(key.toStringRef(), read(archive, value_of(index)));
  }
  return state;
}

HookState shared_part(const HookState& state) { return part_of(state, false); }
HookState local_part(const HookState& state) { return part_of(state, true); }

HookState join_parts(HookState shared, const HookState& local) {
  for (const auto& [key, value] : local) {
    if (!shared.emplace(key, value).second)
      throw InvalidArgument(concat("join_parts(): both parts have a '", key, "'."));
  }
  return shared;
}

HookState average_local(const std::vector<HookState>& parts) {
  if (parts.empty()) throw InvalidArgument("average_local(): there is no rank's part.");
  const c10::NoGradGuard no_grad;
  HookState mean;
  for (const HookState& part : parts) {
    for (const auto& [key, value] : part) {
      const at::Tensor& more = summand(key, value);
      const auto [place, first] = mean.try_emplace(key);
      if (first) place->second = at::zeros_like(more);
      at::Tensor sum = place->second.toTensor();
      if (sum.sizes() != more.sizes() || sum.scalar_type() != more.scalar_type()) {
        throw InvalidArgument(concat("average_local(): ranks have ", sum.scalar_type(), sum.sizes(), " and ",
                                     more.scalar_type(), more.sizes(), " as '", key, "'."));
      }
      sum.add_(more, 1.0 / static_cast<double>(parts.size()));
    }
  }
  std::erase_if(mean, [&parts](const auto& item) {
    const auto has_it = [&item](const HookState& part) { return part.contains(item.first); };
    return item.first.starts_with(internal::kEstimatePrefix) && !std::all_of(parts.begin(), parts.end(), has_it);
  });
  return mean;
}

}  // namespace gradwire

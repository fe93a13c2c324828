// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/hooks/optimizer_state_internal.h"
#include "gradwire/ddp/archive_bytes_internal.h"

#include <ATen/Functions.h>
#include <torch/optim/adagrad.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

namespace gradwire::internal {
namespace {

torch::serialize::InputArchive reread(torch::serialize::OutputArchive& archive, const c10::Device& device = at::kCPU) {
  return read_archive(archive_bytes(archive), device);
}

}  // namespace

StateParts parts_of(const torch::optim::OptimizerParamState& state) {
  torch::serialize::OutputArchive archive;
  state.serialize(archive);
  torch::serialize::InputArchive input = reread(archive);
  StateParts parts;
  for (const std::string& key : input.keys()) {
    c10::IValue value;
    input.read(key, value);
    if (value.isTensor()) {
      if (!value.toTensor().defined()) continue;
      value = value.toTensor().detach().to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
    }
    parts.emplace(key, std::move(value));
  }
  return parts;
}

bool replace_parts(torch::optim::OptimizerParamState& state, const StateParts& parts, const c10::Device& device) {
  torch::serialize::OutputArchive own;
  state.serialize(own);
  const std::vector<std::string> keys = reread(own).keys();
  for (const auto& [part, value] : parts) {
    if (std::find(keys.begin(), keys.end(), part) == keys.end()) return false;
  }
  torch::serialize::OutputArchive archive;
  for (const std::string& key : keys) {
    const auto found = parts.find(key);
    if (found == parts.end()) {
      archive.write(key, c10::IValue(at::Tensor()));
      continue;
    }
    if (found->second.isTensor()) {
      archive.write(key, c10::IValue(found->second.toTensor().to(at::kCPU, false, /*copy=*/true)));
    } else {
      archive.write(key, found->second);
    }
  }
  torch::serialize::InputArchive input = reread(archive, device);
  state.serialize(input);
  return true;
}

void restore_first_state(torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  void* const key = parameter.unsafeGetTensorImpl();
  optimizer.state().erase(key);
  if (dynamic_cast<const torch::optim::Adagrad*>(&optimizer) == nullptr) return;
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    const auto& own = group.params();
    const auto is_it = [&](const at::Tensor& one) { return one.is_same(parameter); };
    if (std::none_of(own.begin(), own.end(), is_it)) continue;
    const auto& options = static_cast<const torch::optim::AdagradOptions&>(group.options());
    auto state = std::make_unique<torch::optim::AdagradParamState>();
    state->step(0);
    state->sum(at::full_like(parameter.detach(), options.initial_accumulator_value()));
    optimizer.state()[key] = std::move(state);
  }
}

}  // namespace gradwire::internal

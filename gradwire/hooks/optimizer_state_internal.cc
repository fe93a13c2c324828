// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/hooks/optimizer_state_internal.h"
#include "gradwire/ddp/archive_bytes_internal.h"

#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace gradwire::internal {
namespace {

torch::serialize::InputArchive reread(torch::serialize::OutputArchive& archive) {
  return read_archive(archive_bytes(archive));
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

bool replace_parts(torch::optim::OptimizerParamState& state, const StateParts& parts, const at::Tensor& parameter) {
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
      archive.write(key, c10::IValue(found->second.toTensor().to(parameter.device(), false, /*copy=*/true)));
    } else {
      archive.write(key, found->second);
    }
  }
  torch::serialize::InputArchive input = reread(archive);
  state.serialize(input);
  return true;
}

}  // namespace gradwire::internal

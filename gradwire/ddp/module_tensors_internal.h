// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The tensors of a module, and whether others have taken their place.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "gradwire/ddp/replica_sync_internal.h"

namespace gradwire::internal {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Each tensor once, under its first name: a shared one has several. Without those that any of `ignored` names.
std::vector<NamedTensor> without_repeats(const NamedTensors& tensors, const std::vector<std::string>& ignored);

NamedTensors named_parameters(const torch::nn::Module& module);
NamedTensors named_buffers(const torch::nn::Module& module);

// Which tensors a module has, in the order of its tree. Costs little: no names are made.
class TensorIdentities final {
 public:
  static TensorIdentities of_parameters(const torch::nn::Module& module);
  static TensorIdentities of_buffers(const torch::nn::Module& module);
  bool operator==(const TensorIdentities& other) const = default;

 private:
  std::vector<const c10::TensorImpl*> tensors_;
};

}  // namespace gradwire::internal

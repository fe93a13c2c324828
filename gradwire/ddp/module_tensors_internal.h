// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The tensors of a module, and the check whether they were replaced.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "gradwire/ddp/replica_sync_internal.h"

namespace gradwire::internal {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Returns each tensor once, under its first name: a shared tensor has several names. Leaves out the tensors that have a
// name in `ignored`.
std::vector<NamedTensor> without_repeats(const NamedTensors& tensors, const std::vector<std::string>& ignored);

// The tensors without their names.
std::vector<at::Tensor> tensors_of(const std::vector<NamedTensor>& named);

NamedTensors named_parameters(const torch::nn::Module& module);
NamedTensors named_buffers(const torch::nn::Module& module);

// The identities of a module's tensors, in the order of the module's tree. Cheap: no names are made.
class TensorIdentities final {
 public:
  static TensorIdentities of_parameters(const torch::nn::Module& module);
  static TensorIdentities of_buffers(const torch::nn::Module& module);
  bool operator==(const TensorIdentities& other) const = default;

 private:
  std::vector<const c10::TensorImpl*> tensors_;
};

}  // namespace gradwire::internal

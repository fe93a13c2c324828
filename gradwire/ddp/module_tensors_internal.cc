// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/module_tensors_internal.h"

#include <algorithm>
#include <set>

namespace gradwire::internal {
namespace {

NamedTensors pairs_of(const torch::OrderedDict<std::string, at::Tensor>& tensors) {
  NamedTensors pairs;
  for (const auto& item : tensors) pairs.emplace_back(item.key(), item.value());
  return pairs;
}

template <class Tensors>
void collect(const torch::nn::Module& module, const Tensors& tensors, std::vector<const c10::TensorImpl*>& found) {
  for (const at::Tensor& tensor : tensors(module)) found.push_back(tensor.unsafeGetTensorImpl());
  for (const auto& child : module.children()) collect(*child, tensors, found);
}

}  // namespace

std::vector<NamedTensor> without_repeats(const NamedTensors& tensors, const std::vector<std::string>& ignored) {
  std::vector<NamedTensor> out;
  std::set<const c10::TensorImpl*> seen;
  for (const auto& [name, tensor] : tensors) {
    if (tensor.defined() && std::find(ignored.begin(), ignored.end(), name) != ignored.end())
      seen.insert(tensor.unsafeGetTensorImpl());
  }
  for (const auto& [name, tensor] : tensors) {
    if (tensor.defined() && seen.insert(tensor.unsafeGetTensorImpl()).second) out.push_back({name, tensor});
  }
  return out;
}

std::vector<at::Tensor> tensors_of(const std::vector<NamedTensor>& named) {
  std::vector<at::Tensor> out;
  for (const NamedTensor& item : named) out.push_back(item.tensor);
  return out;
}

NamedTensors named_parameters(const torch::nn::Module& module) { return pairs_of(module.named_parameters()); }
NamedTensors named_buffers(const torch::nn::Module& module) { return pairs_of(module.named_buffers()); }

TensorIdentities TensorIdentities::of_parameters(const torch::nn::Module& module) {
  TensorIdentities identities;
  collect(
      module, [](const torch::nn::Module& each) { return each.parameters(/*recurse=*/false); }, identities.tensors_);
  return identities;
}

TensorIdentities TensorIdentities::of_buffers(const torch::nn::Module& module) {
  TensorIdentities identities;
  collect(
      module, [](const torch::nn::Module& each) { return each.buffers(/*recurse=*/false); }, identities.tensors_);
  return identities;
}

}  // namespace gradwire::internal

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/optim/param_groups_internal.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <set>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/flat_tensors_internal.h"

namespace gradwire::internal {
namespace {

constexpr std::int64_t kAlignment = 64;

std::int64_t padded_numel(const at::Tensor& tensor) {
  const auto size = static_cast<std::int64_t>(tensor.element_size());
  const std::int64_t bytes = tensor.numel() * size;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment / size;
}

}  // namespace

std::vector<at::Tensor> parameters_in(const ParamGroups& groups) {
  std::vector<at::Tensor> all;
  for (const auto& group : groups) all.insert(all.end(), group.params().begin(), group.params().end());
  return all;
}

void require_parameters(std::string_view who, const std::vector<at::Tensor>& parameters) {
  if (parameters.empty()) throw InvalidArgument(concat(who, " got no parameters; pass those of the module."));
  std::set<const c10::TensorImpl*> seen;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[i];
    const char* problem = nullptr;
    if (!parameter.defined()) {
      problem = "undefined";
    } else if (parameter.layout() != at::kStrided) {
      problem = "sparse; only dense parameters can be stepped";
    } else if (!parameter.is_leaf()) {
      problem = "no leaf of autograd's graph; pass the parameter itself, not a tensor that was computed from it";
    } else if (!seen.insert(parameter.unsafeGetTensorImpl()).second) {
      problem = "among the parameters twice; pass each once, in one group";
    }
    if (problem != nullptr) throw InvalidArgument(concat(who, ": parameter number ", i, " is ", problem, "."));
  }
}

torch::optim::OptimizerParamGroup with_options_of(const torch::optim::OptimizerParamGroup& group,
                                                  std::vector<at::Tensor> parameters) {
  torch::optim::OptimizerParamGroup made(std::move(parameters));
  if (group.has_options()) made.set_options(group.options().clone());
  return made;
}

void copy_options(const ParamGroups& from, ParamGroups& to) {
  GRADWIRE_CHECK(from.size() == to.size());
  for (std::size_t i = 0; i < from.size(); ++i) to[i].set_options(from[i].options().clone());
}

void move_state(torch::optim::Optimizer& from, torch::optim::Optimizer& to, const std::vector<at::Tensor>& parameters) {
  for (const at::Tensor& parameter : parameters) {
    void* const key = parameter.unsafeGetTensorImpl();
    to.state().erase(key);
    const auto found = from.state().find(key);
    if (found == from.state().end()) continue;
    to.state()[key] = std::move(found->second);
    from.state().erase(key);
  }
}

std::int64_t packed_numel(const std::vector<at::Tensor>& parameters) {
  std::int64_t numel = 0;
  for (const at::Tensor& parameter : parameters) numel += padded_numel(parameter);
  return numel;
}

std::vector<std::int64_t> pack_into(const at::Tensor& buffer, const std::vector<at::Tensor>& parameters) {
  const c10::NoGradGuard no_grad;
  std::vector<std::int64_t> offsets;
  std::int64_t offset = 0;
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor view = parameter.is_non_overlapping_and_dense()
                                ? buffer.as_strided(parameter.sizes(), parameter.strides(), offset)
                                : buffer.narrow(0, offset, parameter.numel()).view(parameter.sizes());
    view.copy_(parameter);
    parameter.set_data(view);
    offsets.push_back(offset);
    offset += padded_numel(parameter);
  }
  return offsets;
}

std::vector<at::Tensor> pack_parameters(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> buffers;
  for (const auto& list : by_type_and_device(parameters)) {
    const auto options = list[0].options().requires_grad(false).memory_format(std::nullopt);
    buffers.push_back(at::zeros({packed_numel(list)}, options));
    pack_into(buffers.back(), list);
  }
  return buffers;
}

void mark_changed(const std::vector<at::Tensor>& parameters) {
  for (const at::Tensor& parameter : parameters) parameter.unsafeGetTensorImpl()->bump_version();
}

}  // namespace gradwire::internal

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/optim/optimizer_state_copy_internal.h"

#include <c10/core/GradMode.h>
#include <c10/util/StringUtil.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/hooks/optimizer_state_internal.h"
#include "gradwire/hooks/split_optimizer_internal.h"
#include "gradwire/optim/param_groups_internal.h"

namespace gradwire::internal {
namespace {

bool fits(const at::Tensor& memory, const at::Tensor& values) {
  return memory.defined() && memory.sizes() == values.sizes() && memory.strides() == values.strides() &&
         memory.scalar_type() == values.scalar_type() && memory.device() == values.device();
}

}  // namespace

void copy_entry(const torch::optim::OptimizerParamState& state, const at::Tensor& parameter, OptimizerEntry& kept) {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> memory;
  if (kept != nullptr) {
    for (at::Tensor* const tensor : tensors_of(*kept)) memory.push_back(std::move(*tensor));
  }
  kept = state.clone();  // its tensors are those of `state`
  const std::vector<at::Tensor*> tensors = tensors_of(*kept);
  if (tensors.empty()) {
    GRADWIRE_CHECK(replace_parts(*kept, parts_of(state), parameter.device()));
    return;
  }
  memory.resize(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    at::Tensor& tensor = *tensors[i];
    if (!tensor.defined()) continue;
    if (fits(memory[i], tensor)) {
      memory[i].copy_(tensor);
      tensor = memory[i];
    } else {
      tensor = tensor.clone();
    }
  }
}

void require_state_of_sizes(torch::optim::Optimizer& loaded, std::string_view who) {
  const std::vector<at::Tensor> parameters = parameters_in(loaded.param_groups());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto found = loaded.state().find(parameters[i].unsafeGetTensorImpl());
    if (found == loaded.state().end()) continue;
    for (const at::Tensor* const tensor : tensors_of(*found->second)) {
      if (!tensor->defined() || tensor->sizes() == parameters[i].sizes()) continue;
      throw InvalidArgument(concat(who, ": the state to load has a tensor of sizes ", c10::str(tensor->sizes()),
                                   " for parameter ", i, ", which has the sizes ", c10::str(parameters[i].sizes()),
                                   "; it was saved for another model. Nothing was loaded."));
    }
  }
}

}  // namespace gradwire::internal

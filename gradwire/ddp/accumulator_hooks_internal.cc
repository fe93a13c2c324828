// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/accumulator_hooks_internal.h"

#include <algorithm>
#include <utility>

#include "gradwire/ddp/backward_watch_internal.h"

namespace gradwire::internal {

void AccumulatorHooks::attach(const std::vector<at::Tensor>& parameters,
                              const std::function<void(std::size_t)>& on_gradient) {
  std::vector<AccumulatorHook> hooks;
  for (std::size_t i = 0; i < parameters.size(); ++i)
    hooks.emplace_back(parameters[i], [on_gradient, i] { on_gradient(i); });
  hooks_.swap(hooks);
  for (std::size_t i = 0; i < hooks.size(); ++i) late_.emplace_back(i, std::move(hooks[i]));
  // A parameter that is thawed may get its old accumulator back, which then would have two hooks.
  late_.remove_if([this](const Late& each) {
    const torch::autograd::Node* node = each.hook.node();
    return node == nullptr || node == hooks_[each.parameter].node();
  });
}

void AccumulatorHooks::clear() noexcept {
  hooks_.clear();
  late_.clear();
}

bool AccumulatorHooks::current_pass_reaches(std::size_t parameter) const {
  if (gradwire::internal::current_pass_reaches(hooks_[parameter].node())) return true;
  return std::any_of(late_.begin(), late_.end(), [&](const Late& each) {
    return each.parameter == parameter && gradwire::internal::current_pass_reaches(each.hook.node());
  });
}

bool AccumulatorHooks::current_pass_passes_by() const {
  if (!current_pass_is_for_chosen_inputs()) return false;
  for (std::size_t i = 0; i < hooks_.size(); ++i) {
    if (current_pass_reaches(i)) return false;
  }
  return true;
}

}  // namespace gradwire::internal

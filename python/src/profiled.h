// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The calls of a group as events that a profiler of PyTorch's sees.
#pragma once

#include <ATen/record_function.h>

#include <memory>
#include <utility>
#include <vector>

#include "gradwire/process_group/process_group.h"
#include "gradwire/process_group/profiled_by_caller.h"

namespace gradwire::python {

// The tensors of an argument, where it has any: of a call's arguments the last ones are its inputs.
void take_inputs(const at::Tensor& tensor, Tensors& inputs);
void take_inputs(const Tensors& tensors, Tensors& inputs);
void take_inputs(const std::vector<Tensors>& lists, Tensors& inputs);
template <class Other>
void take_inputs(const Other&, Tensors&) {}

// The event `title`, which has begun.
using Event = std::shared_ptr<at::RecordFunction>;
Event begin_event(at::StepCallbacks&& watched, const char* title, const Tensors& inputs);
// Ends it when `work` has ended. A message ends when somebody asks for it, so its event ends at once.
void end_event(const Event& event, Work& work, bool is_message);

// `method`, which a profiler sees as `title` (a literal) with its inputs, from the call to the end of its Work. Where
// no profiler looks, that costs one look.
template <class... Args>
auto profiled(const char* title, std::shared_ptr<Work> (ProcessGroup::*method)(Args...), bool is_message = false) {
  return [title, method, is_message](ProcessGroup& self, Args... args) -> std::shared_ptr<Work> {
    auto watched = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
    if (!watched) return (self.*method)(std::forward<Args>(args)...);
    Tensors inputs;
    (take_inputs(args, inputs), ...);
    const Event event = begin_event(*std::move(watched), title, inputs);
    const ProfiledByCaller here;
    std::shared_ptr<Work> work = (self.*method)(std::forward<Args>(args)...);
    end_event(event, *work, is_message);
    return work;
  };
}

}  // namespace gradwire::python

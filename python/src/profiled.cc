// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "profiled.h"

#include <ATen/ThreadLocalState.h>

#include <functional>

#include "gradwire/base/error.h"

namespace gradwire::python {

void take_inputs(const at::Tensor& tensor, Tensors& inputs) { inputs = {tensor}; }

void take_inputs(const Tensors& tensors, Tensors& inputs) { inputs = tensors; }

void take_inputs(const std::vector<Tensors>& lists, Tensors& inputs) {
  inputs.clear();
  for (const Tensors& list : lists) inputs.insert(inputs.end(), list.begin(), list.end());
}

Event begin_event(at::StepCallbacks&& watched, const char* title, const Tensors& inputs) {
  std::vector<c10::IValue> values;
  for (const at::Tensor& input : inputs) values.emplace_back(input);
  auto event = std::make_shared<at::RecordFunction>(std::move(watched));
  event->_setAsync();  // another thread may end it
  event->before(title, c10::ArrayRef<const c10::IValue>(values.data(), values.size()));
  return event;
}

void end_event(const Event& event, Work& work, bool is_message) {
  try {
    if (!is_message && !work.is_completed()) {
      const std::function<void()> end = at::wrapPropagateTLSState([event] { event->end(); });
      work.future()->addCallback([end](c10::ivalue::Future&) { end(); }, /*uses_future=*/false);
      return;
    }
  } catch (const UnsupportedError&) {
    // A Work that can only be waited for.
  }
  event->end();
}

}  // namespace gradwire::python

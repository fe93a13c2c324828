// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The parts from which the groups of this room build their Works.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "gradwire/process_group/work.h"

namespace gradwire::internal {

// The value of a collective's future: the list of its output tensors, or a list of lists. The IValue is built when the
// call has ended.
struct Outputs {
  std::vector<at::Tensor> flat;
  std::vector<std::vector<at::Tensor>> nested;  // used instead of `flat` when `is_nested`
  bool is_nested = false;

  static Outputs list(std::vector<at::Tensor> tensors) { return {std::move(tensors), {}, false}; }
  static Outputs one(at::Tensor tensor) {
    Outputs outputs;
    outputs.flat.push_back(std::move(tensor));
    return outputs;
  }
  // As in PyTorch: of several lists, the list of lists; of one list, that list; of none, an empty list.
  static Outputs lists(std::vector<std::vector<at::Tensor>> tensors) {
    if (tensors.size() > 1) return {{}, std::move(tensors), true};
    return tensors.empty() ? list({}) : list(std::move(tensors.front()));
  }

  // The list with this number of those given to lists().
  const std::vector<at::Tensor>& list_at(std::size_t index) const { return is_nested ? nested[index] : flat; }
  c10::IValue value() const;
  c10::TypePtr type() const;
  std::vector<at::Tensor> flattened() const;
  std::size_t bytes() const;
};

// The devices other than the CPU that `tensors` are on, each once.
std::vector<c10::Device> devices_of(const std::vector<at::Tensor>& tensors);

// Returns a future whose value will hold `tensors`. Where the tensors are on a device, the thread that completes the
// future records its current streams there, and the current streams of a thread that waits then wait for these; the CPU
// does not.
Future make_future(const c10::TypePtr& type, const std::vector<at::Tensor>& tensors);

// Returns a Work that has ended without an error. It makes its future, which holds `outputs`, only when asked, so a
// call on a lane does not pay for a future.
std::shared_ptr<Work> completed_work(Outputs outputs);

// Returns the future of `work`; null where it has none and can only be waited for, as a Work of a user's may.
Future future_or_null(Work& work);

// Whether `work` is a Work of completed_work(), failed_work() or work_from_future(): asking it when it ends has no
// effect on anything.
bool may_be_asked(const Work& work) noexcept;

// Like work_from_future, and keeps `owner` alive as long as the Work.
std::shared_ptr<Work> work_from_future(Future future, std::shared_ptr<void> owner);

// Returns a Work that ends when `work` has ended and then `then` has run. After an error of `work`, `then` does not
// run. Where `outputs` are on devices, `then` runs under the streams of this call, or after `work` on streams of its
// own, and who waits for the Work waits for these streams. Where this thread makes no call, the Work stands for the
// call of `work`.
std::shared_ptr<Work> work_after(std::shared_ptr<Work> work, std::function<void()> then, Outputs outputs);

// Returns a Work that ends when all of `works` have ended. Its error is the first error in the order of `works`.
// Where this thread makes no call, the Work stands for the call of the first.
std::shared_ptr<Work> work_of_all(std::vector<std::shared_ptr<Work>> works, Outputs outputs);

}  // namespace gradwire::internal

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What the groups of this room build their Works from.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <functional>
#include <memory>
#include <vector>

#include "gradwire/process_group/work.h"

namespace gradwire::internal {

// What a collective's future will hold: the list of its output tensors, or a list of lists. The IValue is built when
// the call has ended.
struct Outputs {
  std::vector<at::Tensor> flat;
  std::vector<std::vector<at::Tensor>> nested;  // used instead of `flat` when `is_nested`
  bool is_nested = false;

  static Outputs list(std::vector<at::Tensor> tensors) { return {std::move(tensors), {}, false}; }
  // As PyTorch's: a single list stands for itself, none for an empty one.
  static Outputs lists(std::vector<std::vector<at::Tensor>> tensors) {
    if (tensors.size() > 1) return {{}, std::move(tensors), true};
    return tensors.empty() ? list({}) : list(std::move(tensors.front()));
  }

  c10::IValue value() const;
  c10::TypePtr type() const;
  std::vector<at::Tensor> flattened() const;
};

// The devices other than the CPU that `tensors` are on, each once.
std::vector<c10::Device> devices_of(const std::vector<at::Tensor>& tensors);

// A future whose value will hold `tensors`. Where they are on a device, whoever completes it marks the streams that are
// current there on his thread, and whoever waits for it lets his own wait for those; the CPU does not.
Future make_future(const c10::TypePtr& type, const std::vector<at::Tensor>& tensors);

// A Work that has ended well with `outputs`. Makes its future only when asked, so that a call on a lane costs no
// future.
std::shared_ptr<Work> completed_work(Outputs outputs);

// Like work_from_future, and keeps `owner` alive as long as the Work.
std::shared_ptr<Work> work_from_future(Future future, std::shared_ptr<void> owner);

// A Work that ends when `work` has ended and `then` has run after it; `then` does not run after an error.
std::shared_ptr<Work> work_after(std::shared_ptr<Work> work, std::function<void()> then, Outputs outputs);

// A Work that ends when all of `works` have; the first error in their order is its error.
std::shared_ptr<Work> work_of_all(std::vector<std::shared_ptr<Work>> works, Outputs outputs);

}  // namespace gradwire::internal

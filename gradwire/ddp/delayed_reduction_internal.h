// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Gradients that are averaged apart from the buckets.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// Of a synchronized backward pass: when the gradient of one parameter, the trigger, has been accumulated, the gradients
// of `parameters` are summed over the ranks in one all-reduce for each dtype and device, divided, and in .grad at the
// end of that pass. Parameters without a gradient take part with zeros.
class DelayedReduction final : public std::enable_shared_from_this<DelayedReduction> {
 public:
  DelayedReduction(std::vector<at::Tensor> parameters, at::Tensor trigger);
  ~DelayedReduction();

  // Over `group` from now on; puts a hook on the trigger.
  void attach(std::shared_ptr<ProcessGroup> group);
  const std::shared_ptr<ProcessGroup>& group() const noexcept { return group_; }  // null before
  // The next gradient of the trigger starts a reduction, with sums divided by `divisor`.
  void expect(int divisor);
  // At once, with zeros: on a rank that has joined the others. Its gradients become the averages.
  void shadow(int divisor);

 private:
  struct Message {
    std::vector<at::Tensor> parameters;
    at::Tensor buffer;
    std::shared_ptr<Work> work;
  };
  void start(bool zeros);
  void finish();

  const std::vector<at::Tensor> parameters_;
  const at::Tensor trigger_;
  std::shared_ptr<ProcessGroup> group_;
  std::atomic<int> divisor_{0};  // 0: none is expected
  std::vector<Message> under_way_;
  int dividing_by_ = 1;
  c10::intrusive_ptr<torch::autograd::Node> accumulator_;
  std::uintptr_t hook_key_ = 0;
};

}  // namespace gradwire::internal

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Learns when autograd has accumulated a gradient.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <functional>

namespace gradwire::internal {

// Calls `action` on autograd's thread each time it has accumulated into the parameter's .grad, also where the gradient
// was undefined, until the hook is destroyed. What `action` throws ends that backward pass. Autograd gives a parameter
// another accumulator, without the hook, when its dtype or device changes.
class AccumulatorHook final {
 public:
  AccumulatorHook(const at::Tensor& parameter, std::function<void()> action);
  AccumulatorHook(AccumulatorHook&& other) noexcept = default;
  AccumulatorHook& operator=(AccumulatorHook&&) = delete;
  ~AccumulatorHook();

  // Whether `parameter` has the accumulator still that it had when the hook was made.
  bool is_of(const at::Tensor& parameter) const;
  const torch::autograd::Node& node() const noexcept { return *accumulator_; }

 private:
  c10::intrusive_ptr<torch::autograd::Node> accumulator_;  // autograd itself holds it weakly; null: moved from
  std::uintptr_t key_;
};

}  // namespace gradwire::internal

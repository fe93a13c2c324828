// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A hook that runs when autograd has accumulated a gradient.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

namespace gradwire::internal {

// Calls `action` each time autograd has accumulated into the parameter's .grad, also when the gradient was undefined,
// until the hook is destroyed. The call comes on autograd's thread. An exception of `action` ends the backward pass.
// When a parameter's dtype or device changes, autograd gives the parameter another accumulator, without the hook. A
// parameter that needs no gradient has no accumulator: its hook is empty, and calls nothing.
class AccumulatorHook final {
 public:
  AccumulatorHook(const at::Tensor& parameter, std::function<void()> action);
  AccumulatorHook(AccumulatorHook&& other) noexcept = default;
  AccumulatorHook& operator=(AccumulatorHook&&) = delete;
  ~AccumulatorHook();

  // Whether `parameter` still has the accumulator that it had when the hook was made. Of an empty hook: whether
  // `parameter` still needs no gradient.
  bool is_of(const at::Tensor& parameter) const;
  // The accumulator. Null when the hook is empty.
  const torch::autograd::Node* node() const noexcept { return accumulator_.get(); }

 private:
  friend class LateAccumulatorHook;
  // A std::shared_ptr in torch 2.11, a c10::intrusive_ptr in later ones.
  using NodePtr = decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));
  NodePtr accumulator_;  // autograd holds it weakly; null: empty, or moved from
  std::uintptr_t key_ = 0;
};

// A hook on an accumulator that its parameter may have no more, so that only graphs hold the accumulator: a backward
// pass that comes late still calls the action.
class LateAccumulatorHook final {
 public:
  explicit LateAccumulatorHook(AccumulatorHook&& hook);
  LateAccumulatorHook(const LateAccumulatorHook&) = delete;
  LateAccumulatorHook& operator=(const LateAccumulatorHook&) = delete;
  ~LateAccumulatorHook();

  // The accumulator; null when nobody holds it any more, so that no gradient can come.
  const torch::autograd::Node* node() const { return accumulator_.lock().get(); }

 private:
  template <class T>
  static std::weak_ptr<T> weak_of(const std::shared_ptr<T>& pointer) {
    return pointer;
  }
  template <class T>
  static c10::weak_intrusive_ptr<T> weak_of(const c10::intrusive_ptr<T>& pointer) {
    return c10::weak_intrusive_ptr<T>(pointer);
  }

  decltype(weak_of(std::declval<AccumulatorHook::NodePtr>())) accumulator_;
  const std::uintptr_t key_;
};

}  // namespace gradwire::internal

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Hooks on the accumulators of several parameters, also on those that the parameters had before.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <list>
#include <utility>
#include <vector>

#include "gradwire/ddp/accumulator_hook_internal.h"

namespace gradwire::internal {

// When a parameter gets another accumulator, the graph of an earlier forward pass still leads to the old one. So
// attach() keeps the hooks on old accumulators while others hold these: a backward pass that comes late is noticed too.
// Not thread-safe.
class AccumulatorHooks final {
 public:
  // Puts hooks on the accumulators that `parameters` have now, which call `on_gradient` with the number of the
  // parameter, as AccumulatorHook says. Hooks of the call before stay where a graph may bring gradients through them.
  void attach(const std::vector<at::Tensor>& parameters, const std::function<void(std::size_t parameter)>& on_gradient);
  void clear() noexcept;

  // The number of parameters of the last attach(); 0 before.
  std::size_t size() const noexcept { return hooks_.size(); }
  // The number of hooks on old accumulators. For tests.
  std::size_t late_count() const noexcept { return late_.size(); }
  // Whether `tensor`, the parameter of that number, still has the accumulator that it had at the last attach(), or
  // still needs no gradient.
  bool is_of(std::size_t parameter, const at::Tensor& tensor) const { return hooks_[parameter].is_of(tensor); }

  // Within a backward pass: whether the pass reaches an accumulator of the parameter, as
  // gradwire::internal::current_pass_reaches() says.
  bool current_pass_reaches(std::size_t parameter) const;
  // Within a backward pass: whether the pass can bring no gradient of the parameters, as it computes the gradients of
  // chosen tensors only (torch::autograd::grad(), or backward() with `inputs`), and reaches none of them.
  bool current_pass_passes_by() const;

 private:
  struct Late {
    Late(std::size_t of, AccumulatorHook&& old) : parameter(of), hook(std::move(old)) {}
    const std::size_t parameter;
    const LateAccumulatorHook hook;
  };
  std::vector<AccumulatorHook> hooks_;  // by parameter
  std::list<Late> late_;
};

}  // namespace gradwire::internal

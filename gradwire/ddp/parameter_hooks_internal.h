// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The hooks on all parameters of a Reducer, which follow the parameters.
#pragma once

#include <cstddef>
#include <functional>
#include <utility>

#include "gradwire/ddp/accumulator_hooks_internal.h"
#include "gradwire/ddp/bucket_store_internal.h"

namespace gradwire::internal {

// Not thread-safe: the Reducer's lock guards the object.
class ParameterHooks final {
 public:
  // `on_gradient` is called with the number of the parameter, as AccumulatorHook says.
  explicit ParameterHooks(std::function<void(std::size_t parameter)> on_gradient)
      : on_gradient_(std::move(on_gradient)) {}
  ParameterHooks(const ParameterHooks&) = delete;
  ParameterHooks& operator=(const ParameterHooks&) = delete;

  // Puts a hook on each parameter of `store`, as AccumulatorHooks::attach() does.
  void attach(const BucketStore& store);
  void clear() noexcept { hooks_.clear(); }

  // Throws InvalidArgument, with `rank` in the message, when a parameter has another dtype, device or other sizes than
  // in the store. With `lowered`, the dtype may differ: mixed precision changes the dtypes for each pass.
  static void require_unchanged(const BucketStore& store, bool lowered, int rank);

  // Autograd gives a parameter a new accumulator, without our hook, when its tensor is replaced by one of another dtype
  // or device, and sometimes in other cases (torch::load() into the module). A parameter that was frozen at attach()
  // gets an accumulator when it is thawed. Without a new hook, the parameter's gradients would silently stay local. So
  // follow() attaches all hooks anew where a parameter has another accumulator. Called after each forward pass with
  // gradients. Does nothing before attach().
  void follow(const BucketStore& store);

  // As AccumulatorHooks.
  bool current_pass_reaches(std::size_t parameter) const { return hooks_.current_pass_reaches(parameter); }
  bool current_pass_passes_by() const { return hooks_.current_pass_passes_by(); }

 private:
  const std::function<void(std::size_t)> on_gradient_;
  AccumulatorHooks hooks_;
};

}  // namespace gradwire::internal

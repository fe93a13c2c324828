// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Mixed precision: parameters have a lower precision during a forward and a backward pass.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "gradwire/base/backward_errors.h"
#include "gradwire/base/mutex.h"

namespace gradwire::internal {

// Autograd gives a parameter a new gradient accumulator whenever the parameter's dtype changes. So the caller sets
// hooks on accumulators after lower(). Thread-safe, but the caller makes sure that no pass computes with the parameters
// while they change, except the pass whose end calls restore().
class LowPrecision final : public std::enable_shared_from_this<LowPrecision> {
 public:
  // Lowers those of `parameters` that have a real floating-point dtype. `dtype`: the lower precision.
  LowPrecision(std::vector<at::Tensor> parameters, at::ScalarType dtype);

  // Called before a forward pass, after which restore_after() or abandon_forward() is called. Turns the parameters into
  // copies of the lower precision, which they stay until then at least. Returns whether they changed; does nothing when
  // they already are lowered. Throws as restore() does.
  bool lower() GRADWIRE_EXCLUDES(mutex_);
  // Gives the parameters their own values and dtype back, and casts the gradients to that dtype. Does nothing when the
  // parameters are not lowered. A parameter whose tensor was replaced meanwhile (as torch::load() does) keeps the new
  // tensor, if that tensor has the parameter's own dtype. After all that, throws InvalidArgument when the program has
  // changed a copy: with an optimizer in a hook, or with a step before the backward pass.
  void restore() GRADWIRE_EXCLUDES(mutex_);
  bool is_lowered() const GRADWIRE_EXCLUDES(mutex_);

  // Called after a forward pass. Calls restore() at the end of the backward pass through one of `outputs`, also when
  // that pass ends with an exception; a pass for chosen inputs that leaves out all parameters does not count. Calls
  // restore() also when the graphs of all `outputs` are destroyed, because no backward pass can follow then; but not
  // within a forward pass, which may drop the outputs of the one before. When no output has a graph, calls restore()
  // now, unless a backward pass through the outputs of an earlier forward may still follow. When `outputs` is empty,
  // the outputs are unknown: the next backward pass restores.
  void restore_after(const std::vector<at::Tensor>& outputs) GRADWIRE_EXCLUDES(mutex_);
  // Called after a forward pass that ended with an exception. Calls restore() now, unless a backward pass through the
  // outputs of an earlier forward may still follow.
  void abandon_forward() noexcept GRADWIRE_EXCLUDES(mutex_);
  // Called in a backward pass: calls restore() once, at the end of the pass.
  void restore_at_end() GRADWIRE_EXCLUDES(mutex_);

 private:
  class Graph;
  struct Entry {
    at::Tensor parameter;
    at::Tensor full;  // while the parameter is lowered: its own memory
    at::Tensor low;   // while the parameter is lowered: the memory of the copy
    std::uint32_t version = 0;

    bool was_replaced() const { return !parameter.is_alias_of(low); }
    bool was_changed() const;
  };
  void end_forward() noexcept GRADWIRE_EXCLUDES(mutex_);
  bool awaits_backward() const noexcept GRADWIRE_EXCLUDES(mutex_);
  void begin_backward() GRADWIRE_EXCLUDES(mutex_);
  void graph_gone(std::uint64_t lowering) noexcept GRADWIRE_EXCLUDES(mutex_);
  void restore_or_log() noexcept GRADWIRE_EXCLUDES(mutex_);

  const std::vector<at::Tensor> parameters_;
  const at::ScalarType dtype_;
  const TranslateError errors_ = backward_errors();  // of the thread that makes the DDP
  mutable Mutex mutex_;
  std::vector<Entry> entries_ GRADWIRE_GUARDED_BY(mutex_);
  bool lowered_ GRADWIRE_GUARDED_BY(mutex_) = false;
  bool in_forward_ GRADWIRE_GUARDED_BY(mutex_) = false;
  bool restoring_ GRADWIRE_GUARDED_BY(mutex_) = false;      // true: the running pass restores at its end
  std::uint64_t lowering_ GRADWIRE_GUARDED_BY(mutex_) = 0;  // the number of calls of lower() that changed something
  std::size_t graphs_ GRADWIRE_GUARDED_BY(mutex_) = 0;      // the graphs of forward passes since then that exist
};

}  // namespace gradwire::internal

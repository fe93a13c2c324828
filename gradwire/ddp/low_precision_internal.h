// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Parameters that have a lower precision while a forward and a backward pass compute.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "gradwire/base/mutex.h"

namespace gradwire::internal {

// Autograd makes a parameter a new gradient accumulator whenever its type changes, so hooks on those are to be set
// after lower(). Thread-safe, but the caller sees to it that no pass computes with the parameters while they change,
// except the one whose end calls restore().
class LowPrecision final : public std::enable_shared_from_this<LowPrecision> {
 public:
  // Of `parameters`, those of a real floating-point type take part.
  LowPrecision(const std::vector<at::Tensor>& parameters, at::ScalarType dtype);

  // The parameters become copies in the lower precision; does nothing where they are. True when they changed. Throws
  // as restore() does.
  bool lower() GRADWIRE_EXCLUDES(mutex_);
  // The parameters are what they were, and gradients get their type. Does nothing where they are. A parameter whose
  // tensor somebody has replaced meanwhile (torch::load() does) keeps what it was given, if that has its own type.
  // Throws InvalidArgument, after it has done so, when somebody has changed a copy: an optimizer in a hook, or before
  // the backward pass.
  void restore() GRADWIRE_EXCLUDES(mutex_);
  bool is_lowered() const GRADWIRE_EXCLUDES(mutex_);

  // After a forward pass: restore() at the end of the backward pass through one of `outputs`, however that pass ends,
  // and when none of their graphs is left, so that no backward pass can come. Outputs of which none has a graph: now.
  // No outputs: the caller knows no more of them than that; the next backward pass restores.
  void restore_after(const std::vector<at::Tensor>& outputs) GRADWIRE_EXCLUDES(mutex_);
  // After a forward pass that ended with an exception: now, unless outputs of an earlier one may be used yet.
  void abandon_forward() noexcept GRADWIRE_EXCLUDES(mutex_);
  // In a backward pass: restore() at its end, once.
  void restore_at_end() GRADWIRE_EXCLUDES(mutex_);

 private:
  class Graph;
  struct Entry {
    at::Tensor parameter;
    at::Tensor full;  // while it is lowered: the memory of the parameter
    at::Tensor low;   // while it is lowered: the copy's memory
    std::uint32_t version = 0;

    bool was_replaced() const { return !parameter.is_alias_of(low); }
    bool was_changed() const;
  };
  void graph_gone(std::uint64_t lowering) noexcept GRADWIRE_EXCLUDES(mutex_);
  void restore_or_log() noexcept GRADWIRE_EXCLUDES(mutex_);

  const at::ScalarType dtype_;
  mutable Mutex mutex_;
  std::vector<Entry> entries_ GRADWIRE_GUARDED_BY(mutex_);
  bool lowered_ GRADWIRE_GUARDED_BY(mutex_) = false;
  bool restoring_ GRADWIRE_GUARDED_BY(mutex_) = false;      // at the end of the pass that runs
  std::uint64_t lowering_ GRADWIRE_GUARDED_BY(mutex_) = 0;  // counts calls of lower() that did something
  std::size_t graphs_ GRADWIRE_GUARDED_BY(mutex_) = 0;      // of forward passes since then that are left
};

}  // namespace gradwire::internal

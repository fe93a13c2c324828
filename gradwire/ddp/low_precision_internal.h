// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Parameters that have a lower precision while a forward and a backward pass compute.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace gradwire::internal {

// Autograd makes a parameter a new gradient accumulator whenever its type changes, so hooks on those are to be set
// after lower(). Not thread-safe: the caller sees to it that no pass runs, but the one whose end calls restore().
class LowPrecision {
 public:
  // Of `parameters`, those of a real floating-point type take part.
  LowPrecision(const std::vector<at::Tensor>& parameters, at::ScalarType dtype);

  // The parameters become copies in the lower precision; does nothing where they are. True when they changed. Throws
  // as restore() does.
  bool lower();
  // The parameters are what they were, and gradients get their type. Does nothing where they are. Throws
  // InvalidArgument, after it has done so, when somebody has changed a copy: an optimizer in a hook, or before the
  // backward pass.
  void restore();
  // In a backward pass: restore() at its end, once.
  static void restore_at_end(const std::shared_ptr<LowPrecision>& self);

 private:
  struct Entry {
    at::Tensor parameter;
    at::Tensor full;  // while it is lowered: the memory of the parameter
    std::uint32_t version = 0;
  };
  bool changed() const;
  std::vector<Entry> entries_;
  const at::ScalarType dtype_;
  bool lowered_ = false;
  std::atomic<bool> restoring_{false};  // at the end of the pass that runs
};

}  // namespace gradwire::internal

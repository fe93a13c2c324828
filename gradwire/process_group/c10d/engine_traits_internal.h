// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What an engine of c10d supports, and how the arguments of a call are converted for it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "gradwire/base/reduce_op.h"

namespace gradwire::internal {

// What is known of an engine by its name.
struct EngineTraits {
  bool is_gloo = false;
  bool serves_cpu = true;
  bool serves_others = true;
  bool tells_errors = false;  // Backend::getError()
};
EngineTraits traits_of(const std::string& backend_name);

// A tensor of the caller as the engine gets it: contiguous, without autograd, of a dtype that the engine knows.
struct Prepared {
  at::Tensor memory;
  std::function<void()> bring_back;  // copies the result into the caller's tensor; empty where nothing is to copy
};

// For a call that moves elements. `reads`: the engine reads the values; `writes`: the engine writes them.
Prepared prepare_to_move(const EngineTraits& traits, const at::Tensor& tensor, bool reads, bool writes);

// Whether the engine has this reduction: gloo has no product of complex numbers. `op` is defined for the type.
bool can_reduce(const EngineTraits& traits, at::ScalarType type, ReduceOp op);

struct PreparedReduction {
  Prepared tensor;
  c10d::ReduceOp op;
};

// For a reduction with `op` over `ranks` ranks. `source` is read. `target` gets the result: it is the same tensor,
// another tensor, or undefined where this rank gets no result. The engine has the reduction: can_reduce().
PreparedReduction prepare_to_reduce(const EngineTraits& traits, const at::Tensor& source, const at::Tensor& target,
                                    ReduceOp op, int ranks);

}  // namespace gradwire::internal

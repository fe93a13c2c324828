// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Reductions of complex numbers of two halves, for which the kernels have no type.
#pragma once

#include "gradwire/base/reduce_op.h"
#include "gradwire/process_group/process_group.h"
#include "gradwire/process_group/validate_internal.h"

namespace gradwire::internal {

inline bool is_complex_half(const at::Tensor& tensor) { return tensor.scalar_type() == at::kComplexHalf; }

// Whether one of the tensors is of ComplexHalf.
bool any_complex_half(const Tensors& tensors);

// `tensors`, and in place of those of ComplexHalf their real and imaginary parts as views of Half.
Tensors as_halves(const Tensors& tensors);

// Refuses a reduction of complex numbers that is not one of their parts, each by itself, and conjugated `tensors`.
void require_by_parts(const Validator& check, ReduceOp op, const Tensors& tensors);

}  // namespace gradwire::internal

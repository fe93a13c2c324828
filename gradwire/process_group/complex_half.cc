// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/process_group/complex_half_internal.h"

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>

#include "gradwire/base/strings.h"

namespace gradwire::internal {

bool any_complex_half(const Tensors& tensors) { return std::any_of(tensors.begin(), tensors.end(), is_complex_half); }

Tensors as_halves(const Tensors& tensors) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  Tensors halves;
  halves.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors)
    halves.push_back(is_complex_half(tensor) ? at::view_as_real(tensor) : tensor);
  return halves;
}

void require_by_parts(const Validator& check, ReduceOp op, const Tensors& tensors) {
  using Kind = ReduceOp::Kind;
  if (std::any_of(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) { return tensor.is_conj(); }))
    check.fail(concat("a conjugated view of ", at::kComplexHalf, " has no parts in memory; call resolve_conj() first"));
  if (op.kind == Kind::sum || op.kind == Kind::avg || op.kind == Kind::premul_sum) return;
  check.fail(concat("there is no ", name_of(op.kind), " of ", at::kComplexHalf,
                    "; sum, avg and premul_sum are defined, or convert to ", at::kComplexFloat));
}

}  // namespace gradwire::internal

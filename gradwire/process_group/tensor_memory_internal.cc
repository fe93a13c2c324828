// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/process_group/tensor_memory_internal.h"

#include <ATen/Functions.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "gradwire/process_group/dtype_internal.h"

namespace gradwire::internal {
namespace {

bool lies_in_order(const at::Tensor& tensor) {
  // Conjugation and negation may be lazy: bits that say how to read the memory.
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

}  // namespace

Memory memory_for_results(const at::Tensor& tensor) {
  if (lies_in_order(tensor)) return Memory::borrowed(tensor);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return Memory::owned(at::empty(tensor.sizes(), tensor.options().memory_format(std::nullopt)));
}

Memory memory_with_values(const at::Tensor& tensor) {
  Memory memory = memory_for_results(tensor);
  copy_back(*memory, tensor);
  return memory;
}

at::Tensor without_lazy_signs(at::Tensor tensor) {
  if (tensor.is_conj()) tensor = tensor.conj();
  return tensor.is_neg() ? tensor._neg_view() : tensor;
}

void copy_back(const at::Tensor& tensor, const at::Tensor& memory) {
  if (memory.is_same(tensor)) return;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (at::has_internal_overlap(tensor) != at::MemOverlap::Yes) {
    tensor.copy_(memory);
    return;
  }
  at::Tensor once = tensor, values = memory;
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.stride(dim) != 0 || tensor.size(dim) == 0) continue;
    once = once.narrow(dim, 0, 1);
    values = values.narrow(dim, 0, 1);
  }
  once.copy_(values);
}

void divide_average(const at::Tensor& sums, int ranks) {
  if (at::isIntegralType(sums.scalar_type(), /*includeBool=*/false)) {
    sums.div_(ranks, "trunc");
  } else {
    sums.div_(ranks);
  }
}

Elements elements_of(const at::Tensor& tensor) {
  const auto count = static_cast<std::size_t>(tensor.numel());
  if (const auto dtype = to_dtype(tensor.scalar_type())) return {*dtype, count};
  return {DType::u8, count * tensor.element_size()};
}

}  // namespace gradwire::internal

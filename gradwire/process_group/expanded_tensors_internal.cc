// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/process_group/expanded_tensors_internal.h"

#include <ATen/Functions.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "gradwire/process_group/call_group.h"
#include "gradwire/process_group/tensor_memory_internal.h"
#include "gradwire/process_group/work_internal.h"

namespace gradwire::internal {

bool any_expanded(const Tensors& tensors) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const at::Tensor& tensor) { return at::has_internal_overlap(tensor) == at::MemOverlap::Yes; });
}

at::Tensor copied_in_turn(ProcessGroup& group, const at::Tensor& tensor) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  // Calls on devices read their input at once, or in the order of streams.
  if (!tensor.is_cpu()) return tensor.clone(at::MemoryFormat::Contiguous);
  const at::Tensor copy = at::empty(tensor.sizes(), tensor.options());
  before_next_call(group, {tensor}, [tensor, copy] {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    copy.copy_(tensor);
  });
  return copy;
}

std::shared_ptr<Work> call_with_copies(ProcessGroup& group, const Tensors& tensors,
                                       const std::function<std::shared_ptr<Work>(const Tensors& copies)>& call) {
  Tensors copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(copied_in_turn(group, tensor));
  auto work = call(copies);
  const auto copy_results = [tensors, copies] {
    for (std::size_t i = 0; i < tensors.size(); ++i) copy_back(tensors[i], copies[i]);
  };
  return work_after(std::move(work), copy_results, Outputs::list(tensors));
}

}  // namespace gradwire::internal

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/gradient_copy_internal.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include <cstddef>

#include "gradwire/kernels/reduce.h"
#include "gradwire/process_group/dtype_internal.h"

namespace gradwire::internal {
namespace {

constexpr std::int64_t kGrain = std::int64_t{1} << 18;  // the least number of elements for a thread

bool is_one_run(const at::Tensor& destination, const at::Tensor& source) {
  return destination.device().is_cpu() && source.device().is_cpu() && destination.strides() == source.strides() &&
         destination.scalar_type() == source.scalar_type() && source.is_non_overlapping_and_dense() &&
         !source.is_neg() && !destination.is_neg();  // lazily negated: the memory holds other values
}

// A tensor that type promotion treats as a number, as in PyTorch's multiplication by a number.
at::Tensor wrapped_number(double value) {
  at::Tensor number = at::scalar_tensor(value, at::kDouble);
  number.unsafeGetTensorImpl()->set_wrapped_number(true);
  return number;
}

}  // namespace

void copy_scaled(at::Tensor& destination, const at::Tensor& source, double factor, bool streamed) {
  const auto dtype = to_floating_dtype(source.scalar_type());
  if (!dtype || !is_one_run(destination, source)) {
    if (factor == 1.0) {
      destination.copy_(source);
    } else {
      at::mul_out(destination, source, wrapped_number(factor));
    }
    return;
  }
  const auto size = static_cast<std::int64_t>(source.element_size());
  auto* to = static_cast<std::byte*>(destination.data_ptr());
  const auto* from = static_cast<const std::byte*>(source.const_data_ptr());
  const ReduceOp op = factor == 1.0 ? ReduceOp::sum() : ReduceOp::premul_sum(factor);
  at::parallel_for(0, source.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    const void* const sources[] = {from + begin * size};
    void* const destinations[] = {to + begin * size};
    kernels::reduce(*dtype, op, sources, destinations, static_cast<std::size_t>(end - begin),
                    streamed ? kernels::Store::streamed : kernels::Store::cached);
  });
}

}  // namespace gradwire::internal

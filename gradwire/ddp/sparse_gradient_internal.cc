// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/sparse_gradient_internal.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <vector>

#include "gradwire/process_group/dtype_internal.h"
#include "gradwire/process_group/sparse_all_reduce_internal.h"

namespace gradwire::internal {

at::Tensor no_rows(at::IntArrayRef sizes, const at::TensorOptions& options) {
  std::vector<std::int64_t> value_sizes = sizes.vec();
  value_sizes.front() = 0;
  const at::Tensor indices = at::empty({1, 0}, at::TensorOptions(options).dtype(at::kLong));
  return at::sparse_coo_tensor(indices, at::empty(value_sizes, options), sizes);
}

at::Tensor average_sparse(ProcessGroup& group, const at::Tensor& mine, at::IntArrayRef sizes,
                          const at::TensorOptions& options, int divisor, const CallTag& tag) {
  const c10::NoGradGuard no_grad;
  at::Tensor sum = mine.defined() ? mine.coalesce().clone() : no_rows(sizes, options);
  CollectiveOptions blocking;
  blocking.async = false;
  blocking.tag = tag;
  const bool divides_first = divides_before_sum(sum.scalar_type());
  if (divides_first) sum._values().div_(divisor);
  all_reduce_sparse(group, sum, blocking);
  sum = sum.coalesce();
  if (!divides_first) sum.values().div_(divisor);
  return sum;
}

}  // namespace gradwire::internal

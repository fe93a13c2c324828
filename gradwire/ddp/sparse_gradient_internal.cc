// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/sparse_gradient_internal.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <vector>

namespace gradwire::internal {
namespace {

std::vector<at::Tensor> all_gather(ProcessGroup& group, const at::Tensor& mine, const CallTag& tag) {
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < group.size(); ++rank) all.push_back(at::empty_like(mine));
  AllGatherOptions options;
  options.async = false;
  options.tag = tag;
  group.all_gather({all}, {mine}, options)->wait();
  return all;
}

// `entries` with room for `count` of them along `dim`.
at::Tensor padded(const at::Tensor& entries, std::int64_t dim, std::int64_t count) {
  std::vector<std::int64_t> missing = entries.sizes().vec();
  missing[static_cast<std::size_t>(dim)] = count - entries.size(dim);
  return at::cat({entries, at::zeros(missing, entries.options())}, dim).contiguous();
}

}  // namespace

at::Tensor average_sparse(ProcessGroup& group, const at::Tensor& mine, at::IntArrayRef sizes,
                          const at::TensorOptions& options, int divisor, const CallTag& tag) {
  const c10::NoGradGuard no_grad;
  // An embedding's gradient: rows of the parameter.
  const auto sparse = at::TensorOptions(options).layout(at::kSparse);
  const at::Tensor local = mine.defined() ? mine.coalesce() : at::Tensor();
  std::vector<std::int64_t> value_sizes = sizes.vec();
  if (!value_sizes.empty()) value_sizes.front() = 0;
  const auto numbers = at::TensorOptions(options).dtype(at::kLong);
  const at::Tensor indices = mine.defined() ? local.indices() : at::empty({1, 0}, numbers);
  const at::Tensor values = mine.defined() ? local.values() : at::empty(value_sizes, options);

  const auto counts = all_gather(group, at::full({1}, indices.size(1), numbers), tag);
  std::int64_t largest = 0;
  for (const at::Tensor& count : counts) largest = std::max(largest, count.item<std::int64_t>());
  if (largest == 0) return at::sparse_coo_tensor(indices, values, sizes, sparse).coalesce();

  const auto all_indices = all_gather(group, padded(indices, 1, largest), tag);
  const auto all_values = all_gather(group, padded(values, 0, largest), tag);
  std::vector<at::Tensor> index_parts, value_parts;
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    const auto count = counts[rank].item<std::int64_t>();
    index_parts.push_back(all_indices[rank].narrow(1, 0, count));
    value_parts.push_back(all_values[rank].narrow(0, 0, count));
  }
  at::Tensor sum = at::sparse_coo_tensor(at::cat(index_parts, 1), at::cat(value_parts, 0), sizes, sparse).coalesce();
  sum.values().div_(divisor);
  return sum;
}

}  // namespace gradwire::internal

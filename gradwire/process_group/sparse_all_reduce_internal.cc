// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/process_group/sparse_all_reduce_internal.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/validate_internal.h"

namespace gradwire::internal {
namespace {

constexpr std::size_t kMaxDims = 12;
// How many dimensions, how many of them sparse, how many entries; then the sizes.
using Shape = std::array<std::int64_t, 3 + kMaxDims>;
constexpr std::size_t kEntries = 2;

Shape shape_of(const at::Tensor& tensor) {
  Shape shape{};
  shape[0] = tensor.dim();
  shape[1] = tensor.sparse_dim();
  shape[kEntries] = tensor._nnz();
  std::copy(tensor.sizes().begin(), tensor.sizes().end(), shape.begin() + 3);
  return shape;
}

std::vector<Shape> gather_shapes(ProcessGroup& group, const Shape& mine, const AllGatherOptions& options) {
  const auto longs = at::TensorOptions(at::kLong);
  const auto width = static_cast<std::int64_t>(mine.size());
  const at::Tensor all = at::zeros({group.size(), width}, longs);
  at::Tensor own = at::zeros({width}, longs);
  std::copy(mine.begin(), mine.end(), own.mutable_data_ptr<std::int64_t>());
  group.all_gather_into_tensor(all, own, options)->wait();
  std::vector<Shape> shapes(static_cast<std::size_t>(group.size()));
  const auto* from = all.const_data_ptr<std::int64_t>();
  for (std::size_t rank = 0; rank < shapes.size(); ++rank)
    std::copy_n(from + rank * mine.size(), mine.size(), shapes[rank].begin());
  return shapes;
}

void require_alike(const ProcessGroup& group, const Shape& mine, const std::vector<Shape>& shapes) {
  std::vector<int> others;
  for (std::size_t rank = 0; rank < shapes.size(); ++rank) {
    Shape shape = shapes[rank];
    shape[kEntries] = mine[kEntries];
    if (shape != mine) others.push_back(static_cast<int>(rank));
  }
  if (others.empty()) return;
  throw MismatchError(concat(name_group(group), ": all_reduce of sparse tensors: ", name_ranks(others),
                             " passed another shape, or another number of sparse dimensions"));
}

// All ranks' `part`, whose first dimension is `rows` at most on every rank: [size, rows, ...].
at::Tensor gather_rows(ProcessGroup& group, const at::Tensor& part, std::int64_t rows,
                       const AllGatherOptions& options) {
  std::vector<std::int64_t> padded = part.sizes().vec();
  padded[0] = rows;
  at::Tensor own = at::zeros(padded, part.options());
  own.narrow(0, 0, part.size(0)).copy_(part);
  padded.insert(padded.begin(), group.size());
  at::Tensor all = at::empty(padded, part.options());
  group.all_gather_into_tensor(all, own, options)->wait();
  return all;
}

}  // namespace

void all_reduce_sparse(ProcessGroup& group, at::Tensor& tensor, const CollectiveOptions& options) {
  const c10::NoGradGuard no_grad;
  const Validator check(group, "all_reduce");
  if (!tensor.is_sparse()) check.fail("the tensor is not a sparse COO tensor");
  if (!group.supports(tensor.device().type())) check.fail(concat("the tensor is on ", tensor.device()));
  if (static_cast<std::size_t>(tensor.dim()) > kMaxDims)
    check.fail(concat("a sparse tensor of ", tensor.dim(), " dimensions; ", kMaxDims, " is the most"));
  AllGatherOptions gather;
  static_cast<CollectiveOptions&>(gather) = options;
  gather.async = false;

  const at::Tensor mine = tensor.coalesce();
  const Shape shape = shape_of(mine);
  const std::vector<Shape> shapes = gather_shapes(group, shape, gather);
  require_alike(group, shape, shapes);
  std::int64_t rows = 0;
  for (const Shape& each : shapes) rows = std::max(rows, each[kEntries]);
  if (rows == 0) return;

  // Indices are [sparse dimensions, entries]; entries first makes rows of both.
  const at::Tensor indices = gather_rows(group, mine.indices().t().contiguous(), rows, gather);
  const at::Tensor values = gather_rows(group, mine.values().contiguous(), rows, gather);
  Tensors index_parts;
  Tensors value_parts;
  for (std::size_t rank = 0; rank < shapes.size(); ++rank) {
    const auto place = static_cast<std::int64_t>(rank);
    index_parts.push_back(indices[place].narrow(0, 0, shapes[rank][kEntries]));
    value_parts.push_back(values[place].narrow(0, 0, shapes[rank][kEntries]));
  }
  const at::Tensor sum = at::sparse_coo_tensor(at::cat(index_parts).t(), at::cat(value_parts), tensor.sizes());
  tensor.copy_(sum.coalesce());
}

}  // namespace gradwire::internal

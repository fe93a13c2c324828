// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/process_group/flat_tensors_internal.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cstdint>

namespace gradwire::internal {

std::vector<std::vector<std::size_t>> places_by_type_and_device(const std::vector<at::Tensor>& tensors) {
  std::vector<std::vector<std::size_t>> lists;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto list = std::find_if(lists.begin(), lists.end(), [&](const std::vector<std::size_t>& one) {
      const at::Tensor& first = tensors[one.front()];
      return first.scalar_type() == tensors[i].scalar_type() && first.device() == tensors[i].device();
    });
    if (list != lists.end()) {
      list->push_back(i);
    } else {
      lists.push_back({i});
    }
  }
  return lists;
}

std::vector<std::vector<at::Tensor>> by_type_and_device(const std::vector<at::Tensor>& tensors) {
  std::vector<std::vector<at::Tensor>> lists;
  for (const auto& places : places_by_type_and_device(tensors)) {
    std::vector<at::Tensor>& list = lists.emplace_back();
    for (const std::size_t place : places) list.push_back(tensors[place]);
  }
  return lists;
}

std::vector<std::span<const at::Tensor>> in_runs_of(const std::vector<at::Tensor>& tensors, std::size_t bytes,
                                                    std::size_t alignment) {
  const auto size_of = [&](const at::Tensor& tensor) {
    return (static_cast<std::size_t>(tensor.nbytes()) + alignment - 1) / alignment * alignment;
  };
  std::vector<std::span<const at::Tensor>> runs;
  for (std::size_t first = 0; first < tensors.size();) {
    std::size_t last = first;
    std::size_t together = 0;
    do together += size_of(tensors[last++]);
    while (last < tensors.size() && together + size_of(tensors[last]) <= bytes);
    runs.push_back(std::span(tensors).subspan(first, last - first));
    first = last;
  }
  return runs;
}

at::Tensor flatten(std::span<const at::Tensor> tensors) {
  std::vector<at::Tensor> rows;
  rows.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) rows.push_back(tensor.reshape({-1}));
  return at::cat(rows);
}

std::vector<at::Tensor> cut_like(std::span<const at::Tensor> tensors, const at::Tensor& row) {
  std::vector<at::Tensor> parts;
  parts.reserve(tensors.size());
  std::int64_t begin = 0;
  for (const at::Tensor& tensor : tensors) {
    parts.push_back(row.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
    begin += tensor.numel();
  }
  return parts;
}

void unflatten(const at::Tensor& row, std::span<const at::Tensor> tensors) {
  const std::vector<at::Tensor> parts = cut_like(tensors, row);
  for (std::size_t i = 0; i < parts.size(); ++i) tensors[i].copy_(parts[i]);
}

}  // namespace gradwire::internal

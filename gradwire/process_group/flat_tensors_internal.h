// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Many tensors as few messages: sorted by dtype and device, split into runs, flattened, and copied back.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>
#include <vector>

namespace gradwire::internal {

// Returns lists of one dtype and device each, in the order in which these first appear. Each list keeps the order of
// `tensors`.
std::vector<std::vector<at::Tensor>> by_type_and_device(const std::vector<at::Tensor>& tensors);

// The same, with the tensors' places in `tensors` instead of the tensors.
std::vector<std::vector<std::size_t>> places_by_type_and_device(const std::vector<at::Tensor>& tensors);

// Runs of `tensors` that have at most `bytes` together, but at least one tensor each. A tensor counts as a multiple of
// `alignment` bytes.
std::vector<std::span<const at::Tensor>> in_runs_of(const std::vector<at::Tensor>& tensors, std::size_t bytes,
                                                    std::size_t alignment = 1);

// The elements of `tensors`, of one dtype and device, one after another in a row of new memory.
at::Tensor flatten(std::span<const at::Tensor> tensors);

// The parts of `row` that belong to `tensors`, as views with their sizes.
std::vector<at::Tensor> cut_like(std::span<const at::Tensor> tensors, const at::Tensor& row);

// Copies the parts of `row` into `tensors`.
void unflatten(const at::Tensor& row, std::span<const at::Tensor> tensors);

}  // namespace gradwire::internal

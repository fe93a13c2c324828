// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The average of sparse gradients over the ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// A sparse gradient of an embedding without entries. An embedding's gradient has one sparse dimension.
at::Tensor no_rows(at::IntArrayRef sizes, const at::TensorOptions& options);

// Returns the coalesced sum of `mine` over the ranks, divided by `divisor`. Collective. `mine` is a sparse COO tensor
// of `sizes`; undefined: no entries. `options` are the parameter's dtype and device. All ranks get the same bits.
at::Tensor average_sparse(ProcessGroup& group, const at::Tensor& mine, at::IntArrayRef sizes,
                          const at::TensorOptions& options, int divisor, const CallTag& tag = {});

}  // namespace gradwire::internal

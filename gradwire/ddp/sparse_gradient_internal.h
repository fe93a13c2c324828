// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The average of sparse gradients over the ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// Collective: the coalesced sum over the ranks of `mine`, divided by `divisor`. `mine` is a sparse COO tensor with
// `sizes`; undefined: no entries. `options` (dtype, device) are those of the parameter. All ranks hold the same bits.
at::Tensor average_sparse(ProcessGroup& group, const at::Tensor& mine, at::IntArrayRef sizes,
                          const at::TensorOptions& options, int divisor, const CallTag& tag = {});

}  // namespace gradwire::internal

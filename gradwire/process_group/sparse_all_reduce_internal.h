// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// All-reduce of sparse tensors, out of all-gathers.
#pragma once

#include <ATen/core/Tensor.h>

#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// The sum of all ranks' sparse COO tensors, coalesced, written into each rank's; blocks. Ranks may pass different
// numbers of entries. Every rank gathers all ranks' indices and values, padded to the largest number of them, and adds
// them up by itself in rank order, so all hold the same bits. Ranks must agree on the shape and on how many of its
// dimensions are sparse: MismatchError on all otherwise.
void all_reduce_sparse(ProcessGroup& group, at::Tensor& tensor, const CollectiveOptions& options);

}  // namespace gradwire::internal

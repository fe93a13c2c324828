// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// All-reduce of sparse tensors, made of all-gathers.
#pragma once

#include <ATen/core/Tensor.h>

#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// Writes the sum of all ranks' sparse COO tensors, coalesced, into `tensor` of each rank. Blocks. Ranks may pass
// different numbers of entries. Every rank gathers all ranks' indices and values, padded to the largest number of
// entries, and adds them up by itself in rank order, so all ranks hold the same bits. Throws MismatchError on all ranks
// unless they pass the same shape and the same number of sparse dimensions.
void all_reduce_sparse(ProcessGroup& group, at::Tensor& tensor, const CollectiveOptions& options);

}  // namespace gradwire::internal

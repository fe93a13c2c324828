// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What c10d means by several tensors in one call: the parts that a rank has of one message, as if each came from a rank
// of its own. To gradwire each tensor of a list is a message; c10d's calls for that are the coalesced ones.
//
// Each of these functions makes one call on the group. They throw InvalidArgument where the tensors differ in shape,
// dtype or device.
#pragma once

#include <memory>
#include <vector>

#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// Every tensor gets what number `options.root_tensor` is on the root.
std::shared_ptr<Work> broadcast_list(ProcessGroup& group, const Tensors& tensors, BroadcastOptions options);

// Every tensor gets the reduction of all tensors of all ranks. SUM, PRODUCT, MIN, MAX, BAND, BOR and BXOR: c10d does
// not say by how many tensors an average would divide.
std::shared_ptr<Work> all_reduce_list(ProcessGroup& group, const Tensors& tensors, const AllReduceOptions& options);

// The same for sparse tensors, which are summed.
void all_reduce_sparse_list(ProcessGroup& group, Tensors& tensors, const CollectiveOptions& options);

// Whether the outputs of an all_gather are those of c10d: a list for each input, with room for all inputs of all ranks.
bool is_list_all_gather(const ProcessGroup& group, const std::vector<Tensors>& outputs, const Tensors& inputs);

// Each list gets the inputs of rank 0, then those of rank 1, and so on.
std::shared_ptr<Work> all_gather_list(ProcessGroup& group, const std::vector<Tensors>& outputs, const Tensors& inputs,
                                      const AllGatherOptions& options);

}  // namespace gradwire::internal

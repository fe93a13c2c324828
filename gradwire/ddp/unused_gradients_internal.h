// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The gradients of parameters that no rank used, on ranks that have joined (join.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// Collective. Where `follows` is true, .grad of each of `parameters` becomes what it is on rank `leader`: undefined, or
// a tensor with the same values. So a sharded optimizer steps such a parameter on a rank that has joined as it would
// on a rank that has not. A .grad that is sparse on the leader stays as it is on all ranks. `parameters` and `leader`
// are the same on all ranks.
void follow_gradients(ProcessGroup& group, const std::vector<at::Tensor>& parameters, int leader, bool follows);

}  // namespace gradwire::internal

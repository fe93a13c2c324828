// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The options of the calls on a ProcessGroup: plain structs with defaults.
#pragma once

#include <vector>

#include "gradwire/backend/backend.h"
#include "gradwire/base/deadline.h"
#include "gradwire/base/reduce_op.h"

namespace gradwire {

struct CollectiveOptions {
  // true: the call returns at once, and its Work ends later. false: the call has ended when it returns; it runs on the
  // calling thread where the group can do that and no other call of the group is under way.
  bool async = true;
  // How long the call may take. On gradwire's own backends, time in the group's queue counts. 0: the group's timeout().
  // Negative: InvalidArgument.
  Milliseconds timeout{0};
  // The place of the call in a training step; DDP fills the tag in. Part of the fingerprint that ranks compare.
  CallTag tag = {};
};

struct BroadcastOptions : CollectiveOptions {
  int root = 0;         // the rank whose tensors are sent
  int root_tensor = 0;  // for PyTorch's signature; must be 0
};

struct AllReduceOptions : CollectiveOptions {
  ReduceOp op = ReduceOp::sum();  // how elements are combined
};

struct ReduceOptions : CollectiveOptions {
  ReduceOp op = ReduceOp::sum();  // how elements are combined
  int root = 0;                   // the rank that gets the result
  int root_tensor = 0;            // for PyTorch's signature; must be 0
};

struct AllGatherOptions : CollectiveOptions {};  // nothing more

struct GatherOptions : CollectiveOptions {
  int root = 0;  // the rank that gets the tensors
};

struct ScatterOptions : CollectiveOptions {
  int root = 0;  // the rank whose tensors are distributed
};

struct ReduceScatterOptions : CollectiveOptions {
  ReduceOp op = ReduceOp::sum();  // how elements are combined
};

struct AllToAllOptions : CollectiveOptions {};  // nothing more

struct BarrierOptions : CollectiveOptions {
  std::vector<int> device_ids;  // for PyTorch's signature; only engines of c10d read it
};

}  // namespace gradwire

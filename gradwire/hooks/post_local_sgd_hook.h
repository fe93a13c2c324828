// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Post-local SGD: all ranks average their gradients for a while, then only those of a subgroup do; a model averager
// that runs after the optimizer's step brings the subgroups together now and then.
//
// Lin, Stich, Patel, Jaggi: Don't Use Large Mini-Batches, Use Local SGD (2018).
#pragma once

#include <cstdint>
#include <memory>

#include "gradwire/ddp/comm_hook.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire {

struct PostLocalSGDState {
  std::shared_ptr<ProcessGroup> process_group = nullptr;  // for all ranks; null: DDP's own
  // The ranks that go on together, e.g. ProcessGroup::split() by host. May be of this rank alone. Required unless
  // post_local_gradient_allreduce is false.
  std::shared_ptr<ProcessGroup> subgroup = nullptr;
  std::int64_t start_iteration = 0;  // the first iteration that is not global; counts backward passes from 0
  // False: no communication from start_iteration on, each rank keeps its own gradients.
  bool post_local_gradient_allreduce = true;
};

// Before start_iteration, allreduce_hook() over process_group. From then on the average over the ranks of `subgroup`,
// all of whom hold the same bits; ranks of other subgroups hold others. In a Join with divide_by_initial_world_size
// false, over those of them that have not joined, whom one more all-reduce of an integer counts.
//
// Bytes a rank sends for n float32 elements: what an all-reduce of them sends, over the ranks of the group in use.
//
// Registering it is collective in `subgroup`, too. Lanes may have two buckets of one iteration under way: both take the
// bucket's own iteration, not a counter that the last bucket moves (as PyTorch's, which also stops at the start). The
// state to save is "iteration", the number of the next one, so that a resumed run does not begin with the global phase
// again. Throws InvalidArgument for a negative start and a missing subgroup.
std::shared_ptr<CommHook> make_post_local_sgd_hook(PostLocalSGDState state);

}  // namespace gradwire

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Post-local SGD (Lin, Stich, Patel, Jaggi: Don't Use Large Mini-Batches, Use Local SGD, 2018). In the first iterations
// gradients are averaged over all ranks, then over the ranks of a subgroup only. A model averager (gradwire/optim/),
// which runs after the optimizer's step, averages the parameters of all ranks from time to time.
#pragma once

#include <cstdint>
#include <memory>

#include "gradwire/ddp/comm_hook.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire {

// The options of the hook. start_iteration and post_local_gradient_allreduce must be the same on all ranks.
struct PostLocalSGDState {
  // The group of all ranks. Null: DDP's own group.
  std::shared_ptr<ProcessGroup> process_group = nullptr;
  // The ranks that average together from start_iteration on, for example those of one host (ProcessGroup::split()). May
  // hold this rank alone. Required unless post_local_gradient_allreduce is false.
  std::shared_ptr<ProcessGroup> subgroup = nullptr;
  // The first iteration that averages over the subgroup. Iterations count from 0.
  std::int64_t start_iteration = 0;
  // False: there is no communication from start_iteration on, and each rank keeps its own gradients, undivided.
  bool post_local_gradient_allreduce = true;
};

// Returns the hook. Before start_iteration the hook does the same as allreduce_hook() over process_group. From
// start_iteration on it averages over the ranks of `subgroup`. The ranks of one subgroup then hold the same bits; the
// subgroups differ. In a Join with divide_by_initial_world_size = false, the hook divides by the number of active ranks
// of the subgroup; one more all-reduce of an integer counts these ranks.
//
// A rank sends the bytes of an all-reduce of the bucket over the group in use.
//
// Registering the hook is collective in `subgroup` too. The hook may run for several buckets at once. It counts
// iterations from the first one in which it runs. (PyTorch's hook has a counter that the last bucket advances, and that
// stops at start_iteration.) The state to save is "iteration", the number of the next iteration, so a resumed run does
// not begin with averages over all ranks again. Throws InvalidArgument for a negative start_iteration and for a missing
// subgroup.
std::shared_ptr<CommHook> make_post_local_sgd_hook(PostLocalSGDState state);

}  // namespace gradwire

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The state of hooks in checkpoints, and for another number of ranks.
//
// A run on N ranks saves the shared part of the state once, and the local part of each rank:
//
//   const HookState state = hook->state_dict();
//   save_hook_state(shared_part(state), archive);        // on one rank
//   save_hook_state(local_part(state), own_archive);     // on each rank
//
// A run on the same number of ranks continues with join_parts(shared, local part of this rank). A run on another number
// of ranks continues with join_parts(shared, average_local(local parts of all ranks that saved)). To continue with the
// same bits, the run also passes the saved bucket_order() to DdpCore::set_bucket_order().
//
// All functions here are thread-safe for different arguments, and change none of their inputs.
#pragma once

#include <torch/serialize/archive.h>

#include <vector>

#include "gradwire/ddp/comm_hook.h"

namespace gradwire {

// Writes `state` into `archive`, which holds nothing else. Nest the archive in another one with OutputArchive::write(),
// or write it with save_to(). The values of `state` are tensors, numbers, booleans, strings, and lists of these. Throws
// the c10::Error of the archive.
void save_hook_state(const HookState& state, torch::serialize::OutputArchive& archive);

// Returns the state that save_hook_state() wrote, bit for bit, with tensors on the CPU. Throws InvalidArgument when
// save_hook_state() did not write the archive.
HookState load_hook_state(torch::serialize::InputArchive& archive);

// shared_part() returns the entries that are the same on all ranks. local_part() returns this rank's own entries: their
// keys begin with "local/". The tensors are shared with `state`.
HookState shared_part(const HookState& state);
HookState local_part(const HookState& state);

// Returns the state that consists of both parts. Throws InvalidArgument when the parts have a key in common.
HookState join_parts(HookState shared, const HookState& local);

// Returns the local part for every rank of a run with another world size: for each key the mean over `parts`, the local
// parts of all ranks that saved. A tensor that a part lacks counts as zeros. With the mean, the ranks together still
// owe the same average gradient: a hook divides an undelivered gradient by the number of ranks when it delivers the
// gradient. An estimate of the memory EF21 ("local/estimate/NAME") that a part lacks is left out: that rank took
// "aggregate/NAME" of the shared part for it, and all ranks start from the aggregate then. Throws InvalidArgument when
// `parts` is empty, when a value is not a floating-point tensor, and when the tensors of one key differ in sizes or
// dtypes.
HookState average_local(const std::vector<HookState>& parts);

}  // namespace gradwire

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What hooks remember, on its way into a checkpoint and to another number of ranks.
//
// A run on N ranks saves the shared part once and the local part of each rank:
//
//   const HookState state = hook->state_dict();
//   save_hook_state(shared_part(state), archive);        // on one rank
//   save_hook_state(local_part(state), own_archive);     // on each rank
//
// and goes on, on as many ranks, with join_parts(shared, local of this rank), on another number with
// join_parts(shared, average_local(locals of all ranks that saved)). To go on with the same bits it also gives the new
// DDP the old one's bucket_order().
#pragma once

#include <torch/serialize/archive.h>

#include <vector>

#include "gradwire/ddp/comm_hook.h"

namespace gradwire {

// Writes `state` into an archive of its own (nest it with OutputArchive::write, or save_to() a file or a stream).
// Values: tensors, numbers, booleans, strings, and lists of those. Throws c10::Error where the archive does.
void save_hook_state(const HookState& state, torch::serialize::OutputArchive& archive);

// What save_hook_state() wrote, bit for bit; tensors on the CPU. Throws InvalidArgument for an archive that
// save_hook_state() did not write.
HookState load_hook_state(torch::serialize::InputArchive& archive);

// The entries that are the same on all ranks, and those that are this rank's own (their keys begin with "local/").
HookState shared_part(const HookState& state);
HookState local_part(const HookState& state);

// Both parts in one again. Throws InvalidArgument when they have a key in common.
HookState join_parts(HookState shared, const HookState& local);

// What every rank of a new world takes as its local part, of any size, made of the local parts of all ranks of the old
// one: the mean by key, a missing tensor counting as zeros. What all ranks together owe their gradients' mean is then
// what it was (a hook's memory is a sum of what it has not delivered, divided by the number of ranks when it is).
// Throws InvalidArgument for no parts, for values that are no tensors of a floating-point type, and for tensors of one
// key with different sizes or types.
HookState average_local(const std::vector<HookState>& parts);

}  // namespace gradwire

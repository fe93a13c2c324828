// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Saves the communication hook's state to a checkpoint, and restores it.
#pragma once

#include <string>
#include <vector>

#include "examples/char_lm/options.h"
#include "examples/char_lm/replica.h"
#include "gradwire/ddp/hook_state.h"
#include "gradwire/process_group/process_group.h"

namespace char_lm {

// The hook's state on all ranks. All of it is in one checkpoint file, so a checkpoint is complete or absent, and never
// mixes two runs.
struct HookMemory {
  std::string hook;                        // the value of --hook
  std::vector<std::string> bucket_order;   // of the parameters
  gradwire::HookState shared;              // the same on all ranks
  std::vector<gradwire::HookState> local;  // each rank's own, by rank
};

// Collective. Returns the complete state on rank 0, and the state without `local` on the other ranks.
HookMemory gather_memory(const Options& options, const Replica& replica, gradwire::ProcessGroup& group);

// Restores the state of `replica`, which has not trained yet, from `memory`. If the number of ranks is that of the
// saved run, each rank gets its own local state back. With another number, all ranks get the mean of the local states.
// A hook other than the saved one starts with an empty state. Returns a sentence for the user in the last two cases,
// else an empty text.
std::string restore_memory(const HookMemory& memory, const Options& options, Replica& replica,
                           gradwire::ProcessGroup& group);

}  // namespace char_lm

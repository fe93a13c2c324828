// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What the communication hook remembers, on its way into a checkpoint and out of it.
#pragma once

#include <string>
#include <vector>

#include "examples/char_lm/options.h"
#include "examples/char_lm/replica.h"
#include "gradwire/ddp/hook_state.h"
#include "gradwire/process_group/process_group.h"

namespace char_lm {

// All ranks' memory. It goes into the one checkpoint file, so that the file is whole or absent and holds nothing of
// another run's.
struct HookMemory {
  std::string hook;                        // as --hook named it
  std::vector<std::string> bucket_order;   // of the parameters
  gradwire::HookState shared;              // the same on all ranks
  std::vector<gradwire::HookState> local;  // each rank's own, by rank
};

// Collective; complete on rank 0, on the others without `local`.
HookMemory gather_memory(const Options& options, const Replica& replica, gradwire::ProcessGroup& group);

// Gives `replica`, which has not trained yet, what it needs of `memory` to go on: on as many ranks as saved it, each
// what was its own; on another number, all the mean of what was the ranks' own. A hook other than the one that saved
// starts with an empty memory. Returns a sentence for the user when it is not as simple as the first case, else
// nothing.
std::string restore_memory(const HookMemory& memory, const Options& options, Replica& replica,
                           gradwire::ProcessGroup& group);

}  // namespace char_lm

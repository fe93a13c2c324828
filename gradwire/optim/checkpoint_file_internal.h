// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The file of a checkpoint (docs/checkpoints.md): what it holds, and how it is written and read.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <string>
#include <vector>

#include "gradwire/ddp/distributed_data_parallel.h"
#include "gradwire/ddp/hook_state.h"
#include "gradwire/optim/checkpoint.h"

namespace gradwire::internal {

// What the file holds beside the state of the module and that of the optimizer.
struct CheckpointContents {
  std::vector<std::string> tensors;  // of the module, described in words
  std::string optimizer_class;       // empty: not known
  std::string hook;                  // the identity; empty: there was none
  std::vector<std::string> bucket_order;
  CheckpointValues values;
  HookState shared;                     // the hook's state that all ranks have in common
  std::vector<HookState> local;         // the other part, by rank of those that saved
  std::vector<std::int64_t> memory_of;  // the ranks of those whose local state counts for other ranks
};

// Replaces `file` as a whole or not at all. Throws ResourceError, and what the module and the optimizer throw.
void write_checkpoint(const std::string& file, const CheckpointContents& contents, const DdpCore& ddp,
                      const torch::optim::Optimizer& optimizer);

// Reads `file` into `bytes`. Returns what is wrong with the file (empty: nothing), and throws nothing: the other ranks
// wait for this rank's answer.
std::string read_checkpoint_file(const std::string& file, std::string& bytes);

// Throws some exception where the bytes are no checkpoint.
CheckpointContents read_contents(const std::string& bytes);

}  // namespace gradwire::internal

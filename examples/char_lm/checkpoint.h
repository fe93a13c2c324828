// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Checkpoints: gradwire's (gradwire/optim/checkpoint.h), with the step and the options that a resumed run must share.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <string>

#include "examples/char_lm/options.h"
#include "examples/char_lm/replica.h"
#include "examples/char_lm/text.h"
#include "gradwire/process_group/process_group.h"

namespace char_lm {

// Replaces `file` as a whole or not at all; `step` is the number of steps taken. Collective. Throws
// gradwire::ResourceError on all ranks when the write fails, for example because the disk is full.
void save_checkpoint(const std::string& file, const Options& options, const Vocabulary& vocabulary, std::int64_t step,
                     Replica& replica, torch::optim::Optimizer& optimizer);

struct Resumed {
  std::int64_t step = 0;  // steps taken
  std::string remark;     // a sentence for the user, where the hook does not go on as it was; else empty
};

// Restores `replica`, which has not trained yet, and `optimizer`. Collective in `group`. Throws UserError, and leaves
// both unchanged, when the layers, width, heads, context, dtype, seed, batch, optimizer or the characters of the text
// differ, and when the checkpoint is past the step in --steps; gradwire::InvalidArgument when the file is missing or is
// no checkpoint.
Resumed load_checkpoint(const std::string& file, const Options& options, const Vocabulary& vocabulary, Replica& replica,
                        torch::optim::Optimizer& optimizer, gradwire::ProcessGroup& group);

}  // namespace char_lm

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Checkpoints: one torch archive with the model, the optimizer's state, the step, the communication hook's state on
// each rank, and the options that a resumed run must share.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <string>

#include "examples/char_lm/hook_memory.h"
#include "examples/char_lm/model.h"
#include "examples/char_lm/options.h"
#include "examples/char_lm/text.h"

namespace char_lm {

struct Progress {
  std::int64_t step = 0;  // steps taken
  HookMemory memory;
};

// Replaces `file` as a whole or not at all: if the run is killed during the call, the old file stays. Throws
// std::runtime_error when the write fails, for example because the disk is full.
void save_checkpoint(const std::string& file, const Options& options, const Vocabulary& vocabulary,
                     const Progress& progress, const CharTransformer& model, const torch::optim::Optimizer& optimizer);

// Loads into `model` and `optimizer`, which were made with `options` and are not yet wrapped by DDP. Returns the step
// and the hook's memory. Throws UserError, and leaves the model unchanged, when the file is missing or is no
// checkpoint; when the layers, width, heads, context, dtype, seed, batch, optimizer or the characters of the text
// differ; or when the checkpoint is past the step in --steps.
Progress load_checkpoint(const std::string& file, const Options& options, const Vocabulary& vocabulary,
                         CharTransformer& model, torch::optim::Optimizer& optimizer);

}  // namespace char_lm

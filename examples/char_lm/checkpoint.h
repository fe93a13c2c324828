// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Checkpoints: one torch archive with the model, the optimizer's state, the step, what the communication hook remembers
// on each rank, and the options that a resumed run must share.
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

// Writes `file` whole or not at all: a run that is killed meanwhile leaves what was there before. Throws
// std::runtime_error when the disk refuses, a full one say.
void save_checkpoint(const std::string& file, const Options& options, const Vocabulary& vocabulary,
                     const Progress& progress, const CharTransformer& model, const torch::optim::Optimizer& optimizer);

// Loads into `model` and `optimizer`, which must be made with `options` and not yet be wrapped by DDP; returns the
// rest. Throws UserError when the file is missing or no checkpoint, when --layers, --width, --heads, --context,
// --dtype, --seed,
// --batch, --optimizer or the text's characters differ, or when it is past --steps already; the model is then as it
// was.
Progress load_checkpoint(const std::string& file, const Options& options, const Vocabulary& vocabulary,
                         CharTransformer& model, torch::optim::Optimizer& optimizer);

}  // namespace char_lm

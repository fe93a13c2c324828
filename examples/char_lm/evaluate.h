// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What a trained model is good for: loss on text it has not seen, and text of its own.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "examples/char_lm/model.h"
#include "examples/char_lm/sampler.h"
#include "examples/char_lm/text.h"
#include "gradwire/process_group/process_group.h"

namespace char_lm {

struct Samples {
  torch::Tensor inputs;   // [samples, context] int64
  torch::Tensor targets;  // the same, one character later
};

// Cuts samples out of `text`, one at each of `starts`.
Samples cut(std::span<const std::uint8_t> text, const std::vector<std::size_t>& starts, int context);

// Mean loss over `batches` batches of held-out text, each rank doing its share. Collective.
double held_out_loss(CharTransformer& model, const Corpus& corpus, const Sampler& sampler, int context, int batches,
                     gradwire::ProcessGroup& group);

// `length` characters, drawn one after the other at temperature 0.8 (a little bolder than the likeliest text, a little
// tamer than the model's own distribution). The seed decides the draws.
std::string generate(CharTransformer& model, const Vocabulary& vocabulary, int context, int length, std::uint64_t seed);

}  // namespace char_lm

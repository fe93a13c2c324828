// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The evaluation of a trained model: the loss on held-out text, and generated text.
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

// Cuts samples out of `text`, one sample at each index in `starts`.
Samples cut(std::span<const std::uint8_t> text, const std::vector<std::size_t>& starts, int context);

// Returns the mean loss over `batches` batches of held-out text. Each rank computes its share. Collective.
double held_out_loss(CharTransformer& model, const Corpus& corpus, const Sampler& sampler, int context, int batches,
                     gradwire::ProcessGroup& group);

// Returns `length` characters, drawn one after the other at temperature 0.8: more varied than the most likely text,
// less varied than the model's own distribution. The seed determines the draws.
std::string generate(CharTransformer& model, const Vocabulary& vocabulary, int context, int length, std::uint64_t seed);

}  // namespace char_lm

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "examples/char_lm/evaluate.h"

#include <torch/types.h>

#include <algorithm>

#include "examples/char_lm/ranks.h"

namespace char_lm {
namespace {

constexpr double kTemperature = 0.8;
constexpr std::uint64_t kGenerationStream = 0x67656e6572617465;  // apart from the sampler's

// The first token whose cumulated probability exceeds `u` in [0, 1).
std::int64_t draw(const torch::Tensor& logits, double u) {
  const torch::Tensor cumulated = torch::cumsum(torch::softmax(logits.to(torch::kDouble) / kTemperature, -1), -1);
  const double* values = cumulated.const_data_ptr<double>();
  const double* end = values + cumulated.numel();
  // Rounding may leave the last sum below 1.
  return std::min<std::int64_t>(std::upper_bound(values, end, u) - values, cumulated.numel() - 1);
}

}  // namespace

Samples cut(std::span<const std::uint8_t> text, const std::vector<std::size_t>& starts, int context) {
  const auto count = static_cast<std::int64_t>(starts.size());
  Samples samples{torch::empty({count, context}, torch::kLong), torch::empty({count, context}, torch::kLong)};
  auto* input = samples.inputs.mutable_data_ptr<std::int64_t>();
  auto* target = samples.targets.mutable_data_ptr<std::int64_t>();
  for (const std::size_t start : starts) {
    const auto sample = text.subspan(start, static_cast<std::size_t>(context) + 1);
    input = std::copy(sample.begin(), sample.end() - 1, input);
    target = std::copy(sample.begin() + 1, sample.end(), target);
  }
  return samples;
}

double held_out_loss(CharTransformer& model, const Corpus& corpus, const Sampler& sampler, int context, int batches,
                     gradwire::ProcessGroup& group) {
  const torch::NoGradGuard no_grad;
  double sum = 0;
  for (int batch = 0; batch < batches; ++batch) {
    const Samples samples = cut(corpus.held_out(), sampler.held_out(batch, batches, corpus.held_out().size()), context);
    sum += cross_entropy(model->forward(samples.inputs), samples.targets).item<double>();
  }
  return mean_over_ranks(group, sum / batches);
}

std::string generate(CharTransformer& model, const Vocabulary& vocabulary, int context, int length,
                     std::uint64_t seed) {
  const torch::NoGradGuard no_grad;
  // A line's end is the natural place to begin after; a text of one line begins with its first character.
  const bool has_lines = vocabulary.bytes().find('\n') != std::string::npos;
  std::vector<std::int64_t> tokens{vocabulary.encode(has_lines ? '\n' : vocabulary.bytes().front())};
  std::string text;
  for (int i = 0; i < length; ++i) {
    const std::size_t seen = std::min(tokens.size(), static_cast<std::size_t>(context));
    const torch::Tensor input =
        torch::tensor(std::vector<std::int64_t>(tokens.end() - static_cast<std::ptrdiff_t>(seen), tokens.end()));
    const torch::Tensor logits = model->forward(input.unsqueeze(0)).index({0, -1});
    tokens.push_back(draw(logits, mix_unit(seed, kGenerationStream, static_cast<std::uint64_t>(i))));
    text.push_back(vocabulary.decode(tokens.back()));
  }
  return text;
}

}  // namespace char_lm

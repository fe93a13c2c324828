// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The parts of char_lm that need libtorch, within one process.
#include "examples/char_lm/model.h"

#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <vector>

#include "examples/char_lm/evaluate.h"
#include "examples/char_lm/parameter_hash.h"
#include "examples/char_lm/report.h"

namespace char_lm::model_test {
namespace {

constexpr ModelSize kSize{/*vocabulary=*/11, /*layers=*/2, /*width=*/16, /*heads=*/4, /*context=*/8};

CharTransformer make(std::uint64_t seed) {
  torch::manual_seed(seed);
  return CharTransformer(kSize);
}

torch::Tensor some_tokens(std::int64_t samples, std::int64_t length) {
  return torch::arange(samples * length).mul(7).remainder(kSize.vocabulary).view({samples, length});
}

TEST(CharTransformer, GivesLogitsForEveryCharacter) {
  CharTransformer model = make(1);
  for (const std::int64_t length : {1, 5, 8}) {
    EXPECT_EQ(model->forward(some_tokens(3, length)).sizes(), (std::vector<std::int64_t>{3, length, kSize.vocabulary}));
  }
}

// What is predicted for a place may use that place and those before it, and does use them.
TEST(CharTransformer, SeesThePastAndNotTheFuture) {
  const torch::NoGradGuard no_grad;
  CharTransformer model = make(1);
  constexpr std::int64_t kPlace = 4;
  const torch::Tensor tokens = some_tokens(1, 8);
  torch::Tensor changed = tokens.clone();
  changed.select(1, kPlace).add_(1).remainder_(kSize.vocabulary);
  const torch::Tensor difference = (model->forward(changed) - model->forward(tokens)).abs().amax(-1)[0];
  for (std::int64_t place = 0; place < 8; ++place) {
    if (place < kPlace) {
      EXPECT_EQ(difference[place].item<float>(), 0.0F) << place;
    } else {
      EXPECT_GT(difference[place].item<float>(), 0.0F) << place;
    }
  }
}

// Small initial weights know nothing: every character is about as likely as any other.
TEST(CharTransformer, StartsFromABlindGuess) {
  CharTransformer model = make(3);
  const torch::Tensor tokens = some_tokens(16, 8);
  const double loss = cross_entropy(model->forward(tokens), tokens.roll(1, 1)).item<double>();
  EXPECT_NEAR(loss, std::log(static_cast<double>(kSize.vocabulary)), 0.05);
}

TEST(CharTransformer, InitialWeightsDependOnTheSeedAlone) {
  const std::uint64_t hash = hash_parameters(*make(5));
  (void)torch::randn({100});
  EXPECT_EQ(hash_parameters(*make(5)), hash);
  EXPECT_NE(hash_parameters(*make(6)), hash);
}

// DDP waits for a gradient of every parameter.
TEST(CharTransformer, EveryParameterGetsAGradient) {
  CharTransformer model = make(1);
  const torch::Tensor tokens = some_tokens(4, 8);
  cross_entropy(model->forward(tokens), tokens).backward();
  for (const auto& parameter : model->named_parameters()) {
    EXPECT_TRUE(parameter.value().grad().defined()) << parameter.key();
  }
}

TEST(ParameterHash, SeesOneBit) {
  CharTransformer model = make(1);
  const std::uint64_t hash = hash_parameters(*model);
  {
    const torch::NoGradGuard no_grad;
    torch::Tensor last = model->parameters().back();
    last.view(-1)[-1] = std::nextafter(last.view(-1)[-1].item<float>(), 1.0F);
  }
  EXPECT_NE(hash_parameters(*model), hash);
}

TEST(CrossEntropy, IsTheMeanOfMinusLogProbability) {
  const torch::Tensor logits = torch::tensor({0.0, 0.0, 0.0, std::log(3.0)}, torch::kDouble).view({1, 2, 2});
  const torch::Tensor targets = torch::tensor({0, 1}).view({1, 2});
  EXPECT_NEAR(cross_entropy(logits, targets).item<double>(), (std::log(2.0) + std::log(4.0 / 3.0)) / 2, 1e-12);
}

TEST(Cut, TargetsAreTheInputsOneLater) {
  const std::vector<std::uint8_t> text{0, 1, 2, 3, 4, 5, 6, 7};
  const Samples samples = cut(text, {0, 4}, 3);
  EXPECT_TRUE(samples.inputs.equal(torch::tensor({{0, 1, 2}, {4, 5, 6}})));
  EXPECT_TRUE(samples.targets.equal(torch::tensor({{1, 2, 3}, {5, 6, 7}})));
}

TEST(Generate, WritesInTheVocabularyAndDependsOnTheSeed) {
  CharTransformer model = make(1);
  const Vocabulary vocabulary("abcdefghij\n");
  const std::string text = generate(model, vocabulary, 8, 50, 1);
  EXPECT_EQ(text.size(), 50U);
  EXPECT_EQ(text.find_first_not_of(vocabulary.bytes()), std::string::npos);
  EXPECT_EQ(generate(model, vocabulary, 8, 50, 1), text);
  EXPECT_NE(generate(model, vocabulary, 8, 50, 2), text);
}

TEST(Report, BytesAreShownInFittingUnits) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(999), "999 B");
  EXPECT_EQ(human_bytes(1'703'936), "1.70 MB");
  EXPECT_EQ(human_bytes(5e12), "5000.00 GB");
}

// Generated text reaches the terminal: nothing in it may be a command to that.
TEST(Report, UnprintableBytesAreMasked) { EXPECT_EQ(printable("a\x1b[2J\tb\n\xc3\x7f"), "a?[2J\tb\n??"); }

}  // namespace
}  // namespace char_lm::model_test

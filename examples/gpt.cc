// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A GPT in one file: a decoder-only transformer over characters, trained with gradients of 4 bits, which then writes.
//
//   gradwire-run -n 2 gpt [FILE]       FILE: the text to learn; without it, a counting rhyme
//
// char_lm/ is the same at length, with checkpoints, reports and tests.
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "gradwire/gradwire.h"

namespace {

namespace nn = torch::nn;

constexpr std::int64_t kContext = 32, kWidth = 64, kHeads = 4, kLayers = 2, kBatch = 16;

struct BlockImpl : nn::Module {
  BlockImpl() {
    register_module("norm1", norm1);
    register_module("attention", attention);
    register_module("projection", projection);
    register_module("norm2", norm2);
    register_module("mlp", mlp);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto batch = x.size(0);
    const auto length = x.size(1);
    // [3, batch, heads, length, width / heads]
    const auto qkv = attention(norm1(x)).view({batch, length, 3, kHeads, kWidth / kHeads}).permute({2, 0, 3, 1, 4});
    const auto mixed =
        at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, /*dropout_p=*/0, /*is_causal=*/true);
    const auto y = x + projection(mixed.transpose(1, 2).reshape({batch, length, kWidth}));
    return y + mlp->forward(norm2(y));
  }

  nn::LayerNorm norm1{nn::LayerNormOptions({kWidth})}, norm2{nn::LayerNormOptions({kWidth})};
  nn::Linear attention{kWidth, 3 * kWidth}, projection{kWidth, kWidth};
  nn::Sequential mlp{nn::Linear(kWidth, 4 * kWidth), nn::GELU(), nn::Linear(4 * kWidth, kWidth)};
};
TORCH_MODULE(Block);

struct Gpt : nn::Module {
  explicit Gpt(std::int64_t characters) : tokens(characters, kWidth), head(kWidth, characters) {
    register_module("tokens", tokens);
    register_module("places", places);
    for (std::int64_t i = 0; i < kLayers; ++i) blocks->push_back(Block());
    register_module("blocks", blocks);
    register_module("norm", norm);
    register_module("head", head);
  }
  torch::Tensor forward(const torch::Tensor& text) {
    const auto x = tokens(text) + places(torch::arange(text.size(1)));
    return head(norm(blocks->forward(x)));
  }

  nn::Embedding tokens, places{kContext, kWidth};
  nn::Sequential blocks;
  nn::LayerNorm norm{nn::LayerNormOptions({kWidth})};
  nn::Linear head;
};

std::string default_text() {
  std::string text;
  for (int i = 99; i > 0; --i) {
    text += std::to_string(i) + " buckets on the wire, " + std::to_string(i) +
            " buckets of gradients; average one, pass it around; ";
  }
  return text;
}

struct Text {
  explicit Text(const std::string& text) : characters(text) {
    std::sort(characters.begin(), characters.end());
    characters.erase(std::unique(characters.begin(), characters.end()), characters.end());
    std::vector<std::int64_t> numbers;
    for (const char c : text) numbers.push_back(static_cast<std::int64_t>(characters.find(c)));
    data = torch::tensor(numbers, torch::kLong);
  }
  // Rows of `length` characters from random places.
  torch::Tensor draw(std::int64_t length) const {
    const auto from = torch::randint(data.size(0) - length, {kBatch, 1}, torch::kLong);
    return data.index({from + torch::arange(length)});
  }

  std::string characters;
  torch::Tensor data;
};

std::string write(Gpt& gpt, const Text& text, int length) {
  const torch::NoGradGuard no_grad;
  auto row = text.data.slice(0, 0, kContext).unsqueeze(0);
  std::string out;
  for (int i = 0; i < length; ++i) {
    const auto next = gpt.forward(row.slice(1, std::max<std::int64_t>(0, row.size(1) - kContext)))[0][-1].argmax();
    row = torch::cat({row, next.view({1, 1})}, 1);
    out += text.characters[static_cast<std::size_t>(next.item<std::int64_t>())];
  }
  return out;
}

void train(int rank, const Text& text) {
  const auto characters = static_cast<std::int64_t>(text.characters.size());
  torch::manual_seed(1);
  Gpt gpt(characters);
  gradwire::DistributedDataParallel ddp(gpt);
  ddp.register_comm_hook(gradwire::make_hook("int4:memory=error_feedback"));
  torch::optim::AdamW optimizer(ddp.parameters(), torch::optim::AdamWOptions(3e-3).betas({0.9, 0.99}));
  torch::manual_seed(100 + rank);  // every rank draws other places of the text
  for (int step = 0; step <= 80; ++step) {
    const auto rows = text.draw(kContext + 1);
    optimizer.zero_grad();
    const auto scores = ddp(rows.slice(1, 0, kContext));
    const auto loss = torch::cross_entropy_loss(scores.reshape({-1, characters}), rows.slice(1, 1).reshape({-1}));
    loss.backward();
    optimizer.step();
    if (rank == 0 && step % 20 == 0) std::printf("step %3d  loss %.4f\n", step, loss.item<double>());
  }
  if (rank == 0) std::printf("writes: %s\n", write(gpt, text, 60).c_str());
  const auto all = torch::nn::utils::parameters_to_vector(gpt.parameters());
  std::printf("rank %d ends with parameters of norm %.17g\n", rank, all.to(torch::kDouble).norm().item<double>());
}

}  // namespace

int main(int argc, char** argv) {
  const auto group = gradwire::init_process_group();
  std::string text = default_text();
  if (argc == 2) {
    std::ifstream in(argv[1]);
    text.assign(std::istreambuf_iterator<char>(in), {});
  }
  if (text.size() <= kContext + 1) throw std::runtime_error("the text is too short, or cannot be read");
  train(group->rank(), Text(text));
  gradwire::destroy_process_group();
}

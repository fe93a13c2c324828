// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A decoder-only transformer over characters, with pre-norm as in GPT-2 (Radford et al. 2019), made of libtorch's
// modules.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

namespace char_lm {

struct ModelSize {
  std::int64_t vocabulary;
  std::int64_t layers;
  std::int64_t width;
  std::int64_t heads;    // divides width
  std::int64_t context;  // the longest input
};

// x + attention(norm(x)), then x + mlp(norm(x)). Input and output: [batch, characters, width].
class BlockImpl final : public torch::nn::Module {
 public:
  explicit BlockImpl(const ModelSize& size);
  torch::Tensor forward(const torch::Tensor& x);

 private:
  torch::Tensor attend(const torch::Tensor& x);

  std::int64_t heads_;
  torch::nn::LayerNorm attention_norm_;
  torch::nn::Linear query_key_value_;
  torch::nn::Linear attention_out_;
  torch::nn::LayerNorm mlp_norm_;
  torch::nn::Linear mlp_in_;
  torch::nn::Linear mlp_out_;
};
TORCH_MODULE(Block);

class CharTransformerImpl final : public torch::nn::Module {
 public:
  // Draws the initial weights from torch's CPU generator; seed the generator first.
  explicit CharTransformerImpl(const ModelSize& size);

  // tokens: [batch, characters] int64, at most `context` characters. Returns logits of each character's successor:
  // [batch, characters, vocabulary].
  torch::Tensor forward(const torch::Tensor& tokens);

 private:
  void initialize(std::int64_t layers);

  torch::nn::Embedding token_embedding_;
  torch::nn::Embedding position_embedding_;
  torch::nn::ModuleList blocks_;
  torch::nn::LayerNorm final_norm_;
  torch::nn::Linear head_;
};
TORCH_MODULE(CharTransformer);

// Returns the mean over all characters of -log p(target), in float32 or wider. logits: as above; targets: [batch,
// characters] int64.
torch::Tensor cross_entropy(const torch::Tensor& logits, const torch::Tensor& targets);

}  // namespace char_lm

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "examples/char_lm/model.h"

#include <torch/nn/functional/loss.h>
#include <torch/nn/init.h>
#include <torch/types.h>

#include <cmath>

namespace char_lm {
namespace {

namespace nn = torch::nn;

// No biases in front of a softmax: a key's bias has no effect and a gradient of pure rounding, which Adam would scale
// up to a step, different on every number of ranks.
nn::Linear plain_linear(std::int64_t in, std::int64_t out) {
  return nn::Linear(nn::LinearOptions(in, out).bias(false));
}

nn::LayerNorm norm(std::int64_t width) { return nn::LayerNorm(nn::LayerNormOptions({width})); }

constexpr double kInitialDeviation = 0.02;

}  // namespace

BlockImpl::BlockImpl(const ModelSize& size)
    : heads_(size.heads),
      attention_norm_(register_module("attention_norm", norm(size.width))),
      query_key_value_(register_module("query_key_value", plain_linear(size.width, 3 * size.width))),
      attention_out_(register_module("attention_out", plain_linear(size.width, size.width))),
      mlp_norm_(register_module("mlp_norm", norm(size.width))),
      mlp_in_(register_module("mlp_in", nn::Linear(size.width, 4 * size.width))),
      mlp_out_(register_module("mlp_out", nn::Linear(4 * size.width, size.width))) {}

torch::Tensor BlockImpl::attend(const torch::Tensor& x) {
  const std::int64_t batch = x.size(0);
  const std::int64_t length = x.size(1);
  const std::int64_t width = x.size(2);
  // [batch, length, 3 * width] -> three of [batch, heads, length, width / heads]
  const torch::Tensor all =
      query_key_value_(x).view({batch, length, 3, heads_, width / heads_}).permute({2, 0, 3, 1, 4});
  const torch::Tensor mixed =
      at::scaled_dot_product_attention(all[0], all[1], all[2], /*attn_mask=*/{}, /*dropout_p=*/0.0, /*is_causal=*/true);
  return attention_out_(mixed.transpose(1, 2).reshape({batch, length, width}));
}

torch::Tensor BlockImpl::forward(const torch::Tensor& x) {
  const torch::Tensor attended = x + attend(attention_norm_(x));
  return attended + mlp_out_(torch::gelu(mlp_in_(mlp_norm_(attended))));
}

CharTransformerImpl::CharTransformerImpl(const ModelSize& size)
    : token_embedding_(register_module("token_embedding", nn::Embedding(size.vocabulary, size.width))),
      position_embedding_(register_module("position_embedding", nn::Embedding(size.context, size.width))),
      blocks_(register_module("blocks", nn::ModuleList())),
      final_norm_(register_module("final_norm", norm(size.width))),
      head_(register_module("head", plain_linear(size.width, size.vocabulary))) {
  for (std::int64_t layer = 0; layer < size.layers; ++layer) {
    blocks_->push_back(Block(size));
  }
  initialize(size.layers);
}

void CharTransformerImpl::initialize(std::int64_t layers) {
  const torch::NoGradGuard no_grad;
  // Each of the 2 * layers branches adds to the residual stream; this keeps its variance flat.
  const double residual_deviation = kInitialDeviation / std::sqrt(2.0 * static_cast<double>(layers));
  for (auto& parameter : named_parameters()) {
    const std::string& name = parameter.key();
    const bool is_norm = name.find("norm") != std::string::npos;
    const bool is_bias = name.ends_with("bias");
    const bool ends_branch = name.find("_out.") != std::string::npos;
    if (is_bias) {
      parameter.value().zero_();
    } else if (!is_norm) {
      parameter.value().normal_(0.0, ends_branch ? residual_deviation : kInitialDeviation);
    }
  }
}

torch::Tensor CharTransformerImpl::forward(const torch::Tensor& tokens) {
  const torch::Tensor positions = torch::arange(tokens.size(1), tokens.options());
  torch::Tensor x = token_embedding_(tokens) + position_embedding_(positions);
  for (const auto& block : *blocks_) {
    x = block->as<BlockImpl>()->forward(x);
  }
  return head_(final_norm_(x));
}

torch::Tensor cross_entropy(const torch::Tensor& logits, const torch::Tensor& targets) {
  const torch::ScalarType type = logits.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  return nn::functional::cross_entropy(logits.reshape({-1, logits.size(-1)}).to(type), targets.reshape({-1}));
}

}  // namespace char_lm

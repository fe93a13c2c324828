// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Random models, and random training programs for them. One number determines a model and its program.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <string>
#include <vector>

#include "gradwire/hooks/hook_test_support.h"

namespace gradwire::testing {

enum class LayerKind { linear, scale, low_rank, complex_product, convolution };

struct LayerPlan {
  LayerKind kind = LayerKind::linear;
  std::int64_t in = 1, out = 1;
  at::ScalarType dtype = at::kDouble;
  int shares = -1;      // the earlier layer whose parameters this layer uses; -1: its own
  bool branch = false;  // not part of the chain, so it may be unused
};

enum class Graphs { every_parameter, searched, fixed };

// The actions of one training step before its synchronized pass.
struct StepPlan {
  int zero = 0;   // gradients at the start: 0 undefined, 1 zeros, 2 those of the previous step
  int local = 0;  // passes without synchronization
};

struct TrainingPlan {
  explicit TrainingPlan(std::uint64_t seed);

  std::uint64_t seed;
  int world = 1;
  Setup setup;
  double bucket_cap_mb = 25;
  Graphs graphs = Graphs::every_parameter;
  std::vector<LayerPlan> layers;
  std::vector<StepPlan> steps;
  std::size_t hook = 0;          // of exact_hooks()
  std::size_t later_hook = 0;    // replaces `hook` ...
  std::size_t replaced_at = 99;  // ... before this step
  double tolerance = 1e-6;

  // Whether `rank` uses `layer` in pass `pass` of step `step`.
  bool uses(int rank, std::size_t step, int pass, std::size_t layer) const;
  at::Tensor input(int rank, std::size_t step, int pass) const;
  // Returns a text with all random choices, for messages.
  std::string describe() const;
};

// Hooks that average without loss, by name.
struct ExactHook {
  std::string name;
  bool takes_complex = true;
  std::shared_ptr<CommHook> (*make)();
};
const std::vector<ExactHook>& exact_hooks();

struct RandomNetImpl : torch::nn::Module {
  explicit RandomNetImpl(const TrainingPlan& plan);
  // The loss of the samples `x`, through the layers that are `used`.
  at::Tensor forward(const at::Tensor& x, const std::vector<bool>& used);

 private:
  at::Tensor apply(std::size_t layer, const at::Tensor& x) const;
  std::vector<LayerPlan> layers_;
  std::vector<std::vector<at::Tensor>> weights_;  // by layer
};
TORCH_MODULE(RandomNet);

// The layers that `rank` uses in one pass.
std::vector<bool> used_layers(const TrainingPlan& plan, int rank, std::size_t step, int pass);

// Changes the parameters along their gradients, and keeps the gradients.
void descend(torch::nn::Module& module);

// Returns the gradients, after each step, of one module that gets the batches of all ranks.
std::vector<std::vector<at::Tensor>> oracle_gradients(const TrainingPlan& plan);

// Returns a text about wrong gradients that DDP gives `rank`; empty when all gradients are right.
std::string training_error(const TrainingPlan& plan, int rank, const std::shared_ptr<ProcessGroup>& group,
                           const std::vector<std::vector<at::Tensor>>& expected);

}  // namespace gradwire::testing

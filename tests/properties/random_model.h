// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Models and training runs drawn at random: a number says all of one.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <optional>
#include <ostream>
#include <random>
#include <string>
#include <vector>

namespace gradwire::testing {

// One step of a model: one linear layer or more side by side, of which an iteration uses some.
struct Step {
  std::int64_t in = 1, out = 1;
  int branches = 1;
  int shared_with = -1;  // uses the layers of this earlier step
  bool norm = false;     // a layer norm behind it, with vectors for parameters
  bool frozen = false;   // its parameters need no gradient
  at::ScalarType dtype = at::kDouble;
};

enum class Graph { whole, found, fixed };  // everything is used; find_unused_parameters; static_graph
enum class Zero { never, to_none, to_zeros };

struct Run {
  std::uint64_t number = 0;
  int world = 1;
  std::vector<Step> steps;
  std::int64_t rows = 1;  // of each rank's batch
  int iterations = 3;
  Graph graph = Graph::whole;
  std::vector<bool> synchronized;  // of each iteration; the last one is
  std::vector<Zero> zero;          // before each iteration
  int hook = 0;                    // none, one collective, two stages
  std::optional<double> bucket_cap_mb;
  int lanes = 0;
  bool view = false;
  bool local_group = false;  // over a user's group with three collectives

  // Whether `rank` uses branch `branch` of `step` in `iteration`.
  bool uses(int rank, int iteration, std::size_t step, int branch) const;
  // What `rank` trains on.
  at::Tensor input(int rank, int iteration) const;
};

Run random_run(std::uint64_t number, int world);
std::ostream& operator<<(std::ostream& out, const Run& run);

struct RandomModelImpl : torch::nn::Module {
  explicit RandomModelImpl(const Run& run);
  at::Tensor forward(at::Tensor x, int rank, int iteration);

 private:
  const Run run_;
  std::vector<std::vector<torch::nn::Linear>> layers_;
  std::vector<torch::nn::LayerNorm> norms_;
};
TORCH_MODULE(RandomModel);

}  // namespace gradwire::testing

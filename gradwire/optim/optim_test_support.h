// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// For the tests of this room: parameters of many kinds with gradients that every rank knows, and kinds of optimizers.
#pragma once

#include <ATen/Functions.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "gradwire/hooks/hook_test_support.h"
#include "gradwire/optim/optimizer_factory.h"
#include "gradwire/optim/zero_redundancy_optimizer.h"

namespace gradwire::testing {

struct OptimizerKind {
  std::string name;
  OptimizerFactory factory;
};

inline std::vector<OptimizerKind> optimizer_kinds() {
  using namespace torch::optim;
  return {{"sgd_momentum", optimizer_factory<SGD>(SGDOptions(0.1).momentum(0.9).weight_decay(1e-2))},
          {"adam", optimizer_factory<Adam>(AdamOptions(1e-2))},
          {"adam_amsgrad", optimizer_factory<Adam>(AdamOptions(1e-2).amsgrad(true))},
          {"adamw", optimizer_factory<AdamW>(AdamWOptions(1e-2).weight_decay(0.1))}};
}

inline OptimizerFactory adam_factory(double lr = 1e-2) {
  return optimizer_factory<torch::optim::Adam>(torch::optim::AdamOptions(lr));
}

// Shapes, layouts and types that differ; the same on every rank.
inline std::vector<at::Tensor> many_parameters() {
  std::vector<at::Tensor> parameters{random_tensor({7, 5}, 1).t(),
                                     random_tensor({4, 3, 2, 2}, 2).contiguous(at::MemoryFormat::ChannelsLast),
                                     random_tensor({10}, 3).to(at::kDouble),
                                     random_tensor({}, 4),
                                     random_tensor({700}, 5),
                                     random_tensor({33, 9}, 6),
                                     random_tensor({0, 3}, 7),
                                     random_tensor({6, 11}, 8).to(at::kDouble),
                                     random_tensor({33, 9}, 9)};
  for (at::Tensor& parameter : parameters) parameter.requires_grad_();
  return parameters;
}

// The average over `world` ranks, which each rank makes for itself, in one order. One parameter gets none.
inline void set_gradients(const std::vector<at::Tensor>& parameters, int world, int step) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    at::Tensor sum = at::zeros_like(parameters[i]);
    for (int rank = 0; rank < world; ++rank)
      sum.add_(random_tensor(parameters[i].sizes(), 1000 * step + 100 * rank + static_cast<int>(i)));
    parameters[i].mutable_grad() = i == 3 ? at::Tensor() : sum.div_(world);
  }
}

inline void expect_same_bits(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected,
                             const std::string& where) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i)
    ASSERT_TRUE(same_bits(actual[i], expected[i])) << where << ", parameter " << i;
}

inline std::unique_ptr<torch::optim::Optimizer> plain_optimizer(const OptimizerFactory& factory,
                                                                const std::vector<at::Tensor>& parameters) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(parameters);
  return factory(std::move(groups));
}

// Copies that no step changes.
inline std::vector<at::Tensor> values_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> values;
  for (const at::Tensor& tensor : tensors) values.push_back(tensor.detach().clone());
  return values;
}

inline void set_values(const std::vector<at::Tensor>& tensors, const std::vector<at::Tensor>& values) {
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < values.size(); ++i) tensors[i].detach().copy_(values[i]);
}

// What stands for a step of training: moves each parameter by a number that depends on worker and step.
inline void move(const std::vector<at::Tensor>& parameters, int worker, std::int64_t step) {
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const int seed = static_cast<int>(1000 * step + 10 * static_cast<std::int64_t>(i)) + worker;
    parameters[i].detach().sub_(random_tensor(parameters[i].sizes(), seed).to(parameters[i].scalar_type()), 0.1);
  }
}

// What a checkpoint file would hold.
inline std::string bytes_of(const torch::optim::Optimizer& optimizer) {
  std::ostringstream out;
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  archive.save_to(out);
  return out.str();
}
inline void load_bytes(torch::optim::Optimizer& optimizer, const std::string& bytes) {
  torch::serialize::InputArchive archive;
  archive.load_from(bytes.data(), bytes.size());
  optimizer.load(archive);
}

// Loads the state of a sharded optimizer into another one, on all ranks. Collective.
inline void hand_over(ZeroRedundancyOptimizer& from, ZeroRedundancyOptimizer& to) {
  const ProcessGroup& group = *from.process_group();
  for (int rank = 0; rank < group.size(); ++rank) {
    from.consolidate_state(rank);
    if (group.rank() == rank) load_bytes(to, bytes_of(from));
  }
}

// Every rank's tensors hold the bits that rank 0's do.
inline void expect_replicas(ProcessGroup& group, const std::vector<at::Tensor>& tensors, const std::string& where) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    at::Tensor first = tensors[i].detach().contiguous().clone();
    group.broadcast({first})->wait();
    ASSERT_TRUE(same_bits(first, tensors[i].detach().contiguous())) << where << ", tensor " << i;
  }
}

}  // namespace gradwire::testing

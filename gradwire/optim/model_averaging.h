// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Averaging the parameters of models that went their own ways for some steps. PyTorch's
// torch.distributed.algorithms.model_averaging.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "gradwire/process_group/process_group.h"

namespace gradwire {

// Those that have a gradient.
std::vector<at::Tensor> parameters_to_average(const std::vector<at::Tensor>& parameters);
std::vector<at::Tensor> parameters_to_average(const std::vector<torch::optim::OptimizerParamGroup>& groups);

// Collective: `parameters` become their averages over the ranks of `group` (null: the default group), each divided by
// the number of ranks in its own type, then summed. All ranks pass the same ones. Parameters keep their memory. They
// travel in messages of at most 25 MiB, or of one parameter, so little memory is needed besides. An all-reduce of all
// of them for bytes.
void average_parameters(const std::vector<at::Tensor>& parameters,
                        const std::shared_ptr<ProcessGroup>& group = nullptr);

// Decides at each step of the training loop whether parameters are averaged, and with whom. Not thread-safe.
class ModelAverager {
 public:
  virtual ~ModelAverager() = default;
  // Once a step, after the optimizer's, on all ranks: averages those of `parameters` that have a gradient, or does not,
  // and counts the step.
  virtual void average_parameters(const std::vector<at::Tensor>& parameters) = 0;
  // Steps so far; set_step() is for a run that goes on from a checkpoint, and throws InvalidArgument for one below 0.
  virtual std::int64_t step() const = 0;
  virtual void set_step(std::int64_t step) = 0;
};

// Averages at steps warm_up, warm_up + period, warm_up + 2 period, ... counted from 0.
//
// With a hook that averages gradients within a subgroup (hooks/post_local_sgd_hook.h) this is post-local SGD; `warm_up`
// is then the hook's start_iteration.
class PeriodicModelAverager final : public ModelAverager {
 public:
  // Throws InvalidArgument for a period below 1 and a warm-up below 0. `group` null: the default group.
  explicit PeriodicModelAverager(std::int64_t period, std::int64_t warm_up = 0,
                                 std::shared_ptr<ProcessGroup> group = nullptr);
  void average_parameters(const std::vector<at::Tensor>& parameters) override;
  std::int64_t step() const override { return step_; }
  void set_step(std::int64_t step) override;

 private:
  const std::int64_t period_;
  const std::int64_t warm_up_;
  const std::shared_ptr<ProcessGroup> group_;
  std::int64_t step_ = 0;
};

// Averages in groups of several sizes, the larger the rarer: {{2, 4}, {8, 16}} among every 4 ranks at even steps, among
// all 16 at every eighth. Of the periods that divide the step the largest counts (the step itself, not its distance
// from warm_up, as in PyTorch); steps before warm_up average nothing. A group is `size` ranks that follow one another.
//
// Wang, Ma, Wang, Joshi, Gupta: Local Averaging Helps: Hierarchical Federated Learning and Convergence Analysis (2020).
class HierarchicalModelAverager final : public ModelAverager {
 public:
  struct Level {
    std::int64_t period = 1;
    int group_size = 1;
  };
  // Collective in `group` (null: the default group), which it splits. Throws InvalidArgument unless periods begin at 1
  // or more and rise, sizes divide the group's size, the last one is the group's size, and warm_up is not below 0;
  // UnsupportedError for a group that cannot be split.
  explicit HierarchicalModelAverager(const std::vector<Level>& levels, std::int64_t warm_up = 0,
                                     std::shared_ptr<ProcessGroup> group = nullptr);
  void average_parameters(const std::vector<at::Tensor>& parameters) override;
  std::int64_t step() const override { return step_; }
  void set_step(std::int64_t step) override;

  // The group that averages at `step`; null for none.
  std::shared_ptr<ProcessGroup> group_at(std::int64_t step) const;

 private:
  const std::int64_t warm_up_;
  std::vector<std::pair<std::int64_t, std::shared_ptr<ProcessGroup>>> groups_;  // by period, rising
  std::int64_t step_ = 0;
};

}  // namespace gradwire

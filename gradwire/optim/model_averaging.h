// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Averages the parameters of the ranks' models, which differ when ranks step with gradients of their own. Follows
// torch.distributed.algorithms.model_averaging.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/process_group/process_group.h"

namespace gradwire {

// Returns the parameters that have a gradient, in their order. The second form takes the parameters of all groups. Does
// not communicate: a program that averages these itself sees to it that they are the same on all ranks, as the
// averagers below do.
std::vector<at::Tensor> parameters_to_average(const std::vector<at::Tensor>& parameters);
std::vector<at::Tensor> parameters_to_average(const std::vector<torch::optim::OptimizerParamGroup>& groups);

// Collective: sets `parameters` to their averages over the ranks of `group` (null: the default group). Each parameter
// is divided by the number of ranks, in its own dtype, and then summed over the ranks. All ranks pass parameters of the
// same sizes, dtypes and devices in the same order; gradients are not needed. Parameters keep their memory. One message
// holds at most 25 MiB or one parameter, so the additional memory is one message. A rank sends as many bytes as for an
// all-reduce of all parameters.
//
// Throws the errors of ProcessGroup::all_reduce(), and InvalidArgument when `group` is null and there is no default
// group. After an error some parameters hold averages and the others their old values.
void average_parameters(const std::vector<at::Tensor>& parameters,
                        const std::shared_ptr<ProcessGroup>& group = nullptr);

// An interface: decides at each step of the training loop whether to average parameters, and over which ranks. Not
// thread-safe.
class ModelAverager {
 public:
  virtual ~ModelAverager() = default;
  // Ends a step of training; call it once a step, after the optimizer's step, on all ranks, with all parameters. Counts
  // the step. At the steps that the averager chooses, averages those of `parameters` that have a gradient (collective).
  // Throws the errors of gradwire::average_parameters(); the step is not counted then.
  //
  // PeriodicModelAverager and HierarchicalModelAverager first compare the step and the parameters that have a gradient
  // over the ranks that average, in an all-gather of two numbers. They throw a MismatchError on these ranks, and
  // average nothing, when one rank is at another step, has gradients of other parameters, or has none. When no rank has
  // any, nothing is averaged, and a warning in the log says so once.
  virtual void average_parameters(const std::vector<at::Tensor>& parameters) = 0;
  // Returns the number of steps so far. set_step() sets this number when a run continues from a checkpoint, and throws
  // InvalidArgument for a number below 0.
  virtual std::int64_t step() const = 0;
  virtual void set_step(std::int64_t step) = 0;
  // Tells the ranks that average with this one that this rank cannot go on, and why: they get a PeerError with the
  // reason instead of waiting for this rank. The default does nothing. DilocoAverager does it.
  virtual void abort(const std::string& reason);
  // Write and read what the averager needs to continue: the number of steps, as "step". An averager with more state
  // writes more. load() of an archive without "step" begins at step 0. Neither communicates.
  virtual void save(torch::serialize::OutputArchive& archive) const;
  virtual void load(torch::serialize::InputArchive& archive);
};

// Averages over the whole group at the steps warm_up, warm_up + period, warm_up + 2 period, ... Steps count from 0.
//
// Together with a hook that averages gradients within a subgroup (hooks/post_local_sgd_hook.h), this averager makes
// post-local SGD; set `warm_up` to the hook's start_iteration.
class PeriodicModelAverager final : public ModelAverager {
 public:
  // `period` and `warm_up` are numbers of steps. A null `group` means the default group. Not collective. Throws
  // InvalidArgument for a period below 1, for a warm-up below 0, and where there is no default group.
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
  bool told_of_no_gradients_ = false;
};

// Averages in groups of several sizes; larger groups average more rarely. With the levels {{2, 4}, {8, 16}}, every 4
// consecutive ranks average at even steps, and all 16 ranks average at every eighth step. When several periods divide
// the number of the step, the largest of these periods counts. The number of the step is divided, not its distance from
// warm_up, as in PyTorch. Steps before warm_up do not average.
//
// Wang, Ma, Wang, Joshi, Gupta: Local Averaging Helps: Hierarchical Federated Learning and Convergence Analysis (2020).
class HierarchicalModelAverager final : public ModelAverager {
 public:
  struct Level {
    std::int64_t period = 1;  // in steps
    int group_size = 1;       // in consecutive ranks
  };
  // Collective: splits `group` (null: the default group) for each level with a smaller group size. There is at least
  // one level; periods begin at 1 or more and rise; each group size divides the size of `group`; the last group size is
  // the size of `group`; warm_up is 0 or more. Otherwise throws InvalidArgument, before any communication. Throws
  // UnsupportedError for a group that cannot be split.
  explicit HierarchicalModelAverager(const std::vector<Level>& levels, std::int64_t warm_up = 0,
                                     std::shared_ptr<ProcessGroup> group = nullptr);
  void average_parameters(const std::vector<at::Tensor>& parameters) override;
  std::int64_t step() const override { return step_; }
  void set_step(std::int64_t step) override;

  // Returns this rank's group that averages at `step`, or null when `step` does not average.
  std::shared_ptr<ProcessGroup> group_at(std::int64_t step) const;

 private:
  const std::int64_t warm_up_;
  std::vector<std::pair<std::int64_t, std::shared_ptr<ProcessGroup>>> groups_;  // periods rise
  std::int64_t step_ = 0;
  bool told_of_no_gradients_ = false;
};

}  // namespace gradwire

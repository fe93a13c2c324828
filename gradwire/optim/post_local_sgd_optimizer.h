// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Post-local SGD: an optimizer steps on each rank, and an averager brings the ranks' models together now and then.
//
//   ddp.register_comm_hook(gradwire::make_post_local_sgd_hook({.subgroup = of_this_host, .start_iteration = 100}));
//   gradwire::PostLocalSGDOptimizer optimizer(
//       std::make_unique<torch::optim::SGD>(ddp.parameters(), 0.1),
//       std::make_shared<gradwire::PeriodicModelAverager>(/*period=*/4, /*warm_up=*/100));
//
// Lin, Stich, Patel, Jaggi: Don't Use Large Mini-Batches, Use Local SGD (2018). PyTorch's class of this name.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <memory>

#include "gradwire/optim/model_averaging.h"

namespace gradwire {

// A learning rate scheduler takes this object as any optimizer: options are read from param_groups() at each step, and
// groups that were added here are added to the inner optimizer. What that one remembers is in inner().state(). Not
// thread-safe.
class PostLocalSGDOptimizer final : public torch::optim::Optimizer {
 public:
  // Throws InvalidArgument for null.
  PostLocalSGDOptimizer(std::unique_ptr<torch::optim::Optimizer> inner, std::shared_ptr<ModelAverager> averager);

  // The inner optimizer's step, then the averager's; what the inner one returned.
  at::Tensor step(LossClosure closure = nullptr) override;

  // The inner optimizer's archive and the averager's step in it, as "step". An archive without one, of the inner kind
  // of optimizer, loads too; the averager then begins at step 0, and warms up again.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  torch::optim::Optimizer& inner() noexcept { return *inner_; }
  ModelAverager& averager() noexcept { return *averager_; }

 private:
  void pass_groups_on() const;

  const std::unique_ptr<torch::optim::Optimizer> inner_;
  const std::shared_ptr<ModelAverager> averager_;
};

}  // namespace gradwire

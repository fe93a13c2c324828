// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Post-local SGD: each rank steps an optimizer of its own, and an averager averages the ranks' models from time to
// time.
//
//   ddp.register_comm_hook(gradwire::make_post_local_sgd_hook({.subgroup = of_this_host, .start_iteration = 100}));
//   gradwire::PostLocalSGDOptimizer optimizer(
//       std::make_unique<torch::optim::SGD>(ddp.parameters(), 0.1),
//       std::make_shared<gradwire::PeriodicModelAverager>(/*period=*/4, /*warm_up=*/100));
//
// Lin, Stich, Patel, Jaggi: Don't Use Large Mini-Batches, Use Local SGD (2018). Follows PyTorch's class of this name.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <string>

#include "gradwire/ddp/separate_workers.h"
#include "gradwire/optim/model_averaging.h"

namespace gradwire {

// An optimizer that wraps another one, the inner optimizer. Each step copies the options of this object's
// param_groups() to the inner optimizer, so a learning rate scheduler works on this object. Groups that were added to
// this object are added to the inner optimizer at the next step, save() or load(). The state is in inner().state(); the
// state() of this object is empty. Not thread-safe.
//
// In an elastic job, Elastic::add(optimizer) registers a DilocoAverager too (optim/diloco.h).
class PostLocalSGDOptimizer final : public torch::optim::Optimizer, public SeparateOptimizer {
 public:
  // Takes ownership of `inner` and shares `averager`. Does not communicate. Throws InvalidArgument when one is null.
  PostLocalSGDOptimizer(std::unique_ptr<torch::optim::Optimizer> inner, std::shared_ptr<ModelAverager> averager);

  // Steps the inner optimizer and then calls the averager with all parameters; collective at the steps at which the
  // averager averages. Returns the inner optimizer's result. Throws the errors of the inner optimizer and of the
  // averager. When the inner optimizer or the closure throws, nothing is averaged, and the averager tells the other
  // ranks where it can (ModelAverager::abort()).
  at::Tensor step(LossClosure closure = nullptr) override;

  // save() writes the inner optimizer's archive, and the averager's state into it (ModelAverager::save()). load() reads
  // such an archive, and for an averager without more state than its step also one that the inner optimizer's class
  // wrote by itself: the averager then begins at step 0 and warms up again. What the archive does not mention is
  // forgotten. When load() throws, the state of the inner optimizer is that from before. Neither communicates.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  // SeparateOptimizer's functions, which Elastic calls (ddp/separate_workers.h). A worker that comes takes the options
  // over; its inner optimizer remembers nothing.
  SeparateWorkers* separate_workers() override;
  std::string save_options() const override;
  void load_options(const std::string& bytes) override;

  // Both live as long as this object.
  torch::optim::Optimizer& inner() noexcept { return *inner_; }
  ModelAverager& averager() noexcept { return *averager_; }

 private:
  void pass_groups_on() const;

  const std::unique_ptr<torch::optim::Optimizer> inner_;
  const std::shared_ptr<ModelAverager> averager_;
};

}  // namespace gradwire

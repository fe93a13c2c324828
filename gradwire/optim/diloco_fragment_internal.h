// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// One fragment of the parameters in DiLoCo: parameters of one dtype and device that are exchanged together.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "gradwire/ddp/comm_hook.h"
#include "gradwire/ddp/lane_internal.h"
#include "gradwire/optim/optimizer_factory.h"

namespace gradwire::internal {

class DilocoFragment {
 public:
  // `layout` names the parameters; the index is unique among the fragments. Collective in `group`, which carries the
  // exchanges. The outer parameters begin with the parameters' values.
  DilocoFragment(std::shared_ptr<const BucketLayout> layout, std::shared_ptr<ProcessGroup> group,
                 const OptimizerFactory& outer);

  // Begins the exchange of the differences, on `lane`, which is destroyed before this object, or at once without one.
  // `round` counts exchanges. All ranks begin the exchanges of all fragments in the same order.
  void begin(CommHook& hook, Lane* lane, std::uint32_t round);
  bool is_under_way() const noexcept { return under_way_; }
  // Waits for the exchange, steps the outer parameters and mixes them into the parameters. Throws what the exchange
  // threw.
  void finish(double mixing);

  const std::vector<at::Tensor>& parameters() const noexcept { return layout_->parameters; }
  const std::vector<at::Tensor>& outer() const noexcept { return outer_; }

  // The outer parameters, the outer optimizer and the averages of an exchange under way, for which save() waits.
  void save(torch::serialize::OutputArchive& archive);
  void load(torch::serialize::InputArchive& archive);

 private:
  void exchange(CommHook& hook, std::uint32_t round) noexcept;
  void await();

  const std::shared_ptr<const BucketLayout> layout_;
  const std::shared_ptr<ProcessGroup> group_;
  at::Tensor difference_;                               // flat
  std::vector<at::Tensor> outer_;                       // views of one flat tensor
  std::unique_ptr<torch::optim::Optimizer> optimizer_;  // over outer_
  bool under_way_ = false;
  // Written by the exchange, read after pending_.wait().
  at::Tensor average_;
  std::exception_ptr error_;
  PendingCount pending_;
};

}  // namespace gradwire::internal

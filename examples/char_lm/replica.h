// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// One rank's copy of the model, wrapped in DistributedDataParallel. All uses of gradwire in a training step are here.
#pragma once

#include <torch/types.h>

#include <memory>

#include "examples/char_lm/model.h"
#include "examples/char_lm/options.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire {
class DdpCore;
}

namespace char_lm {

class Replica {
 public:
  // Wraps `model`; collective. Throws gradwire::InvalidArgument for an unknown hook.
  Replica(CharTransformer model, const Options& options, std::shared_ptr<gradwire::ProcessGroup> group);
  ~Replica();

  // Runs the model through DDP: the backward pass of the result averages the gradients over the ranks.
  torch::Tensor forward(const torch::Tensor& tokens);

  // What a checkpoint saves and restores. Lives as long as this object.
  gradwire::DdpCore& core();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace char_lm

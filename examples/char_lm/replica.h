// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// One rank's copy of the model, and DistributedDataParallel around it: everything of gradwire that training needs.
#pragma once

#include <torch/types.h>

#include <memory>
#include <string>
#include <vector>

#include "examples/char_lm/model.h"
#include "examples/char_lm/options.h"
#include "examples/char_lm/step_recorder.h"
#include "gradwire/ddp/comm_hook.h"
#include "gradwire/process_group/process_group.h"

namespace char_lm {

// What of the replica, beside the model, decides how training goes on. Between steps only.
struct ReplicaState {
  std::vector<std::string> bucket_order;
  gradwire::HookState hook;
};

class Replica {
 public:
  // Wraps `model`; collective. `recorder` learns when hooks run. Throws gradwire::InvalidArgument for an unknown hook.
  Replica(CharTransformer model, const Options& options, std::shared_ptr<gradwire::ProcessGroup> group,
          std::shared_ptr<StepRecorder> recorder);
  ~Replica();

  // Through DDP: the backward pass of what comes of it averages the gradients over the ranks.
  torch::Tensor forward(const torch::Tensor& tokens);

  ReplicaState state() const;
  // Before the first step, on all ranks; without the hook's part when `with_hook` is false. Throws
  // gradwire::InvalidArgument for a state that does not fit.
  void restore(const ReplicaState& state, bool with_hook);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace char_lm

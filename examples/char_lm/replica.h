// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// One rank's copy of the model, wrapped in DistributedDataParallel. All uses of gradwire in a training step are here.
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

// The state of the replica, besides the model, that the next steps depend on. Read it between steps only.
struct ReplicaState {
  std::vector<std::string> bucket_order;
  gradwire::HookState hook;
};

class Replica {
 public:
  // Wraps `model`; collective. The hook reports its times to `recorder`. Throws gradwire::InvalidArgument for an
  // unknown hook.
  Replica(CharTransformer model, const Options& options, std::shared_ptr<gradwire::ProcessGroup> group,
          std::shared_ptr<StepRecorder> recorder);
  ~Replica();

  // Runs the model through DDP: the backward pass of the result averages the gradients over the ranks.
  torch::Tensor forward(const torch::Tensor& tokens);

  ReplicaState state() const;
  // Restores a state; call it before the first step, on all ranks. `with_hook` false: leaves out the hook's state.
  // Throws gradwire::InvalidArgument for a state that does not fit.
  void restore(const ReplicaState& state, bool with_hook);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace char_lm

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Parts of parameters that optimizers step by themselves, and the state of these optimizers: joined into the state of
// whole parameters, and split again.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "gradwire/hooks/optimizer_state_internal.h"

namespace gradwire::internal {

// Elements [begin, begin + numel) of a dense parameter, in the order of its memory.
struct Segment {
  at::Tensor parameter;
  std::int64_t begin = 0;
  std::int64_t numel = 0;
};

// Segments with the 1-D tensors that stand for them in an optimizer.
struct SteppedSegments {
  std::vector<Segment> segments;
  std::vector<at::Tensor> tensors;
  torch::optim::Optimizer* optimizer = nullptr;
};

// The optimizers of all segments forget their state and get their parts of the state of `whole`, an optimizer of the
// same kind over whole parameters. A part of the state that has the parameter's sizes is split; others are copied.
void split_state(const torch::optim::Optimizer& whole, const std::vector<SteppedSegments>& all);

// Joins the state of segments, which may come from several optimizers, into the state of whole parameters.
class JoinedState {
 public:
  void add(const SteppedSegments& from);
  // Gives the state to `whole`, an optimizer of the same kind over the parameters.
  void give(torch::optim::Optimizer& whole);

 private:
  struct Joined {
    at::Tensor parameter;
    std::unique_ptr<torch::optim::OptimizerParamState> state;  // of one segment: knows the class
    StateParts parts;                                          // split parts are 1-D here, in the order of memory
  };
  std::map<void*, Joined> parameters_;
};

}  // namespace gradwire::internal

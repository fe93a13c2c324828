// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How a DistributedDataParallel works.
#pragma once

#include <c10/core/ScalarType.h>

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/process_group/process_group.h"

namespace gradwire {

// Types of lower precision, for real floating-point tensors; not given: as they are.
struct MixedPrecision {
  // Of the parameters from forward() to the end of the backward pass, and of the arguments of forward(). The parameters
  // themselves keep their type: an optimizer steps them, and their gradients after the backward pass have it.
  std::optional<at::ScalarType> param_dtype = std::nullopt;
  // Of the buckets; not given: param_dtype. Sums are divided after the reduction.
  std::optional<at::ScalarType> reduce_dtype = std::nullopt;
  // Of the buffers, from construction on.
  std::optional<at::ScalarType> buffer_dtype = std::nullopt;
};

// Must be the same on all ranks.
struct DdpOptions {
  // What changes behaviour.
  std::shared_ptr<ProcessGroup> process_group;  // null: the default group
  // The device of this rank's module, at most one; arguments of forward() that are tensors (or hold some) move there.
  // Empty: wherever they are.
  std::vector<int> device_ids;
  // Buffers (batch norm's running statistics, say) of rank 0 go to all ranks at construction, and before each
  // synchronized forward in training mode. Never before a forward in eval mode or without gradients, so that one rank
  // may evaluate alone. Those that the module has at that time: a buffer may be replaced.
  bool broadcast_buffers = true;
  // Given, it says instead of broadcast_buffers whether they go before forwards; at construction they go then in any
  // case.
  std::optional<bool> forward_sync_buffers;
  // Compare the parameters with rank 0's and take over its values at construction. False: the construction makes no
  // call on the group; the caller answers for equal modules.
  bool init_sync = true;
  // A .grad is a view into its bucket for good: one that is kept past zero_grad() changes with the next backward pass.
  // Otherwise gradients lie in the buckets too, but one that is kept moves, with its values, to memory of its own
  // before its place in the bucket is needed again. (A raw pointer into it does not follow.)
  bool gradient_as_bucket_view = false;
  // Some parameters may get no gradient, others in each iteration and on each rank. They are found when the backward
  // pass begins, by what it goes through; an output of forward() that the loss does not use is none of it. For a pass
  // to begin in time, at least one tensor that the loss is made of must be among the outputs that DDP sees
  // (output_tensors.h). A parameter that one rank did not use takes part with zeros (or what .grad holds) and gets the
  // average; one that no rank used since the iteration before keeps its .grad untouched, bit for bit, undefined or not:
  // ranks exchange one integer a parameter for that. Buckets keep their first order.
  bool find_unused_parameters = false;
  // Every iteration on every rank has the same graph: the same parameters get as many gradients (none, one, several as
  // in re-entrant checkpoints) as in the first one, whose gradients are all reduced at its end. An iteration that
  // brings more throws; one that brings fewer is found at the next forward(). Overrides find_unused_parameters.
  bool static_graph = false;
  // Between forward() and the end of the backward pass the module's parameters are of a lower precision: run one
  // backward pass for each forward (several losses: their sum), and save and load before or after. Nothing of it is
  // left after a forward without gradients, one that throws, and one whose outputs are let go of without a backward
  // pass; where DDP does not see the outputs (output_tensors.h), only after the next backward pass. Where reduce_dtype
  // is not the parameters' type, gradients are no views of buckets. Not for modules with sparse gradients.
  std::optional<MixedPrecision> mixed_precision;
  // Names of parameters and buffers that DDP leaves alone: not compared, not copied from rank 0, not averaged.
  std::vector<std::string> parameters_and_buffers_to_ignore;
  // Names of parameters whose gradients have an all-reduce of their own, without a hook, all of them together (with
  // mixed_precision: of reduce_dtype). It starts when their gradients and that of `param_to_hook_all_reduce` (the name
  // of any parameter, required with them) have been accumulated, and at the latest at the end of the backward pass.
  // They take part with what .grad holds then, or zeros; averages are in .grad at the end of the backward pass.
  std::vector<std::string> delay_all_reduce_named_params;
  std::string param_to_hook_all_reduce;
  // Rethrows an error of a forward or backward pass as what the caller's language wants; returns where it has nothing
  // better. On the thread of that pass. May be empty.
  std::function<void(const std::exception_ptr& error)> rethrow;

  // What changes performance.
  // Cap of the buckets in MiB. Not given: 1 MiB for the first, 25 for the others; given: for the first too.
  std::optional<double> bucket_cap_mb;
  // Threads that run hooks, each with a duplicate of the group: 0 to 8; 0 runs hooks on the backward thread; -1:
  // chosen.
  int lanes = -1;
};

}  // namespace gradwire

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The options of a DistributedDataParallel.
#pragma once

#include <c10/core/ScalarType.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/process_group/process_group.h"

namespace gradwire {

// The dtypes of lower precision: float16, bfloat16, float32 or float64. They apply to real floating-point tensors. A
// dtype that is not given changes nothing.
struct MixedPrecision {
  // The dtype of the parameters from forward() to the end of the backward pass, and of the arguments of forward(). At
  // all other times the parameters have their own dtype: the optimizer sees parameters and gradients of that dtype.
  std::optional<at::ScalarType> param_dtype = std::nullopt;
  // The dtype of the buckets. Not given: param_dtype. Sums are divided after the reduction.
  std::optional<at::ScalarType> reduce_dtype = std::nullopt;
  // The dtype of the buffers, from construction on.
  std::optional<at::ScalarType> buffer_dtype = std::nullopt;
};

// The options must be the same on all ranks.
struct DdpOptions {
  // Options that change the behaviour.

  // The group over which gradients are averaged. Null: the default group.
  std::shared_ptr<ProcessGroup> process_group;
  // The CUDA device of this rank's module: at most one. Tensors in the arguments of forward() move to this device.
  // Empty: tensors stay where they are.
  std::vector<int> device_ids;
  // True: rank 0 sends its buffers (for example the running statistics of batch norm) to all ranks at construction, and
  // before each forward in training mode that follows a synchronized one: also before the first forward under
  // no_sync(), and not before the first one after it, as in PyTorch. A forward in eval mode or without gradients never
  // sends buffers, and one rank may run a forward without gradients alone. Buffers may be replaced: DDP sends the
  // buffers that the module has at that time.
  bool broadcast_buffers = true;
  // When given, this option decides instead of broadcast_buffers whether rank 0 sends its buffers before forwards. Rank
  // 0 then sends its buffers at construction in any case.
  std::optional<bool> forward_sync_buffers;
  // True: at construction, the ranks compare their modules with rank 0's, and take over the values of rank 0. False:
  // the construction makes no call on the group, and the caller makes sure that the modules are equal.
  bool init_sync = true;
  // True: every .grad is a view into its bucket. A gradient that is kept past zero_grad() changes with the next
  // backward pass. False: gradients lie in the buckets too, but a gradient that is kept moves, with its values, to
  // memory of its own before the bucket needs the place again. (A raw pointer into the gradient does not follow: its
  // values change with the next backward pass.)
  bool gradient_as_bucket_view = false;
  // True: parameters may get no gradient, and these may differ between iterations and between ranks. DDP finds the
  // unused parameters when the backward pass begins: the pass does not go through them. At least one tensor from which
  // the loss is computed must be among the outputs that DDP sees (output_tensors.h), so that DDP notices the beginning.
  // A parameter that this rank did not use takes part with what .grad holds, or with zeros, and gets the average. A
  // parameter that no rank used since the iteration before keeps its .grad bit for bit, undefined or not. For this the
  // ranks exchange one integer for each parameter. The buckets keep their first order.
  bool find_unused_parameters = false;
  // True: every iteration on every rank has the same graph. Each parameter gets as many gradients as in the first
  // iteration: none, one, or several (as with re-entrant checkpoints). The first iteration reduces all gradients at its
  // end. A backward pass that brings more gradients throws. After a pass that brought fewer gradients, the next
  // forward() throws. Overrides find_unused_parameters.
  bool static_graph = false;
  // When given, the parameters have a lower precision from forward() to the end of the backward pass. Run one backward
  // pass for each forward (for several losses: of their sum). Save and load the module before forward() or after the
  // backward pass. The parameters also get their own dtype back after a forward without gradients and after a forward
  // that throws (unless the backward pass of an earlier forward may still come), and when the outputs of forward() are
  // destroyed without a backward pass. When DDP does not see the outputs
  // (output_tensors.h), the parameters get their own dtype back only after the next backward pass. Gradients are views
  // into buckets only where reduce_dtype is the parameters' own dtype. Modules with sparse gradients are refused
  // (UnsupportedError).
  std::optional<MixedPrecision> mixed_precision;
  // The names of parameters and buffers that DDP does not compare, copy from rank 0 or average.
  std::vector<std::string> parameters_and_buffers_to_ignore;
  // The names of parameters whose gradients are reduced together, apart from the buckets and without a hook: one
  // all-reduce for each dtype and device (with mixed_precision: in reduce_dtype). The all-reduce starts when these
  // gradients and the gradient of `param_to_hook_all_reduce` have been accumulated, and at the latest at the end of the
  // backward pass. Over a group that cannot be duplicated, the all-reduce starts at the end. Each gradient takes part
  // with what .grad holds at that time, or with zeros. At the end of the backward pass .grad holds the averages.
  std::vector<std::string> delay_all_reduce_named_params;
  // The name of any parameter that needs a gradient: required with delay_all_reduce_named_params, else empty.
  std::string param_to_hook_all_reduce;

  // Options that change the performance.

  // The cap of all buckets in MiB. Not given: 1 MiB for the first bucket, 25 MiB for the others.
  std::optional<double> bucket_cap_mb;
  // A cap for each bucket in MiB, in the order in which buckets are launched, for each dtype and device anew. The last
  // cap also holds for all later buckets. Empty: as bucket_cap_mb says. Only one of the two may be given.
  std::vector<double> bucket_caps_mb;
  // The number of lanes: threads that run hooks, each with a duplicate of the group. From 0 to 8. 0 runs the hooks on
  // the thread of the backward pass. -1 takes two lanes over a group of several hosts, and one lane elsewhere. A module
  // with parameters on a device has no lanes over an engine of that device (nccl), whatever this option says.
  int lanes = -1;
};

}  // namespace gradwire

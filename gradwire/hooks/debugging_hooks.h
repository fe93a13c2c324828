// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Hooks for looking into training, not for training.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "gradwire/ddp/comm_hook.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire {

// Communicates nothing: each rank keeps its own gradients, undivided, so replicas drift apart. Shows what communication
// costs. `group` is not used.
Future noop_hook(const std::shared_ptr<ProcessGroup>& group, GradBucket& bucket);

std::shared_ptr<CommHook> make_noop_hook();

// What a logging hook says of one bucket in one iteration, on this rank.
struct BucketRecord {
  std::uint32_t iteration = 0;
  std::size_t bucket = 0;
  bool is_last = false;
  std::int64_t numel = 0;
  at::ScalarType dtype = at::kFloat;
  double norm_before = 0;  // L2, of this rank's gradients as the hook got them, not divided
  double norm_after = 0;   // L2, of what the hook made of them; the same bits on all ranks when the gradients are
  double seconds = 0;      // from the call of the inner hook to its result
};
using BucketSink = std::function<void(const BucketRecord&)>;

// Runs `inner` and hands a record to `sink`: one call at a time, on whatever thread ends the bucket, buckets in any
// order where there are several lanes. What the sink throws is the hook's error. The inner hook's traits and memory;
// norms cost two passes over the bucket, which are not in `seconds`. Throws InvalidArgument for null.
std::shared_ptr<CommHook> make_logging_hook(std::shared_ptr<CommHook> inner, BucketSink sink);

// Runs `inner`, then compares what all ranks hold, bit for bit, through a checksum of 64 bits a parameter. Where they
// differ, every rank throws a MismatchError that names the iteration, the bucket, the first parameter and the first
// rank that differs from rank 0, which ends DDP. Finds a hook (or a machine) that lets replicas drift apart. -0 and 0
// differ; NaNs of other bits, too. Bytes a rank sends beside the inner hook's, for p parameters over N ranks: 8 p (N -
// 1). The inner hook's traits, but that it is no single collective, and its memory. Throws InvalidArgument for null.
std::shared_ptr<CommHook> make_checking_hook(std::shared_ptr<CommHook> inner);

}  // namespace gradwire

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Hooks for measuring and checking training, not for training itself.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "gradwire/ddp/comm_hook.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire {

// Communicates nothing: each rank keeps its own gradients, undivided, and the ranks' models diverge. Use this hook to
// measure the cost of communication. `group` is not used.
Future noop_hook(const std::shared_ptr<ProcessGroup>& group, GradBucket& bucket);
// noop_hook() as a hook to register.
std::shared_ptr<CommHook> make_noop_hook();

// The record of a logging hook: one bucket in one iteration on this rank.
struct BucketRecord {
  std::uint32_t iteration = 0;
  std::size_t bucket = 0;
  bool is_last = false;               // of the buckets of this iteration
  std::int64_t numel = 0;             // elements of the bucket
  at::ScalarType dtype = at::kFloat;  // of the bucket's elements
  double norm_before = 0;             // the L2 norm of this rank's gradients, not divided, before the inner hook
  double norm_after = 0;  // the L2 norm of the inner hook's result; ranks with the same result have the same bits
  double seconds = 0;     // the time from the call of the inner hook to its result
};
using BucketSink = std::function<void(const BucketRecord&)>;

// Returns a hook that runs `inner` and then calls `sink` with a record. The thread that ends the bucket calls `sink`;
// one call runs at a time. With several lanes the buckets come in any order. An exception of `sink` is an error of the
// hook. The norms cost two passes over the bucket, which do not count in `seconds`. The hook has the traits, the
// identity and the state of `inner`, so one rank alone may log. Throws InvalidArgument when `inner` or `sink` is null.
std::shared_ptr<CommHook> make_logging_hook(std::shared_ptr<CommHook> inner, BucketSink sink);

// Returns a hook that runs `inner` and then compares the results of all ranks bit for bit, by a checksum of 64 bits for
// each parameter. When the results differ, every rank throws a MismatchError, which ends the DDP object. The message
// names the iteration, the bucket, the first rank that differs from rank 0, and the first parameter that differs. Use
// this hook to find a hook, or a machine, that makes replicas diverge. -0 and 0 count as different, and so do NaNs with
// different bits.
//
// For p parameters and N ranks, a rank sends 8 p (N - 1) bytes in addition to the bytes of `inner`. The hook has the
// state and the traits of `inner`, but is no single collective. Throws InvalidArgument for a null hook.
std::shared_ptr<CommHook> make_checking_hook(std::shared_ptr<CommHook> inner);

}  // namespace gradwire

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What a training step of one rank did, and how long it took.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "gradwire/observe/flight_call.h"

namespace gradwire::observe {

// From `begin` to `end`, in nanoseconds of CLOCK_MONOTONIC.
struct Span {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// A collective or message, from the call to its return. A call that is asynchronous returns before it has ended.
struct CallTimes {
  CallKind kind = CallKind::none;  // what was called
  std::uint64_t bytes = 0;         // of this rank's tensors
  std::uint64_t sent = 0;          // by this rank, as ProcessGroup::payload_bytes() counts
  Span span;
};

// The reduction of one bucket of gradients.
struct BucketTimes {
  std::uint64_t ddp = 0;         // tells the buckets of one DistributedDataParallel from those of another
  std::size_t index = 0;         // the number of the bucket
  std::uint64_t bytes = 0;       // of its gradients
  std::uint64_t sent = 0;        // by this rank, encoded, as network_payload_bytes() counts
  int lane = -1;                 // the lane that ran the reduction; -1: the thread of the backward pass
  std::string hook;              // the name of the hook; "all_reduce" without one
  std::int64_t ready = 0;        // when the bucket's last gradient was ready
  Span run;                      // from the begin of the reduction until the average was there; end 0: it failed
  std::int64_t returned = 0;     // when the thread that began the reduction went on; run.end, or before
  std::vector<CallTimes> calls;  // within the reduction, one after the other
  std::vector<Span> waits;       // within the reduction, for calls that were asynchronous
};

// A step. A time of 0 means that it did not come.
struct StepTimes {
  std::uint64_t number = 0;  // counts the steps that were recorded, from 0
  Span whole;
  Span forward;   // from the first forward pass to the first backward pass; includes the loss
  Span backward;  // to the end of the last wait; so several backward passes, and forward passes between them, are one
  Span wait;      // from the last gradient to the averages; the last wait of several
  Span rest;      // from the end of the last backward pass: the optimizer, and what the program does else
  // The waits before `wait`, in their order: of earlier backward passes, and of other DistributedDataParallel in one.
  std::vector<Span> earlier_waits;
  std::vector<BucketTimes> buckets;
  std::vector<CallTimes> calls;  // of the thread that trains, outside of buckets
  std::vector<Span> waits;       // of that thread for calls that were asynchronous, outside of buckets
  double loss = std::numeric_limits<double>::quiet_NaN();  // NaN: not told
};

// The time of the thread that trains, in nanoseconds, in three parts whose sum is the time of the step.
struct Split {
  std::int64_t compute = 0;  // the thread computes, whatever the lanes do meanwhile
  // A collective keeps the thread waiting; includes waiting for other ranks. In a step without buckets (PyTorch's DDP),
  // all that the thread waits for averages: what happens meanwhile is not known.
  std::int64_t communication = 0;
  std::int64_t hook = 0;  // the rest of averaging does: casts, compression, waking up, writing back
};

// A pure function.
Split split_of(const StepTimes& step);

// Sums over steps.
struct StepTotals {
  std::uint64_t steps = 0;
  std::int64_t whole = 0;  // of the steps, in nanoseconds, as the next five
  std::int64_t forward = 0;
  std::int64_t backward = 0;  // without the waits
  std::int64_t wait = 0;
  std::int64_t rest = 0;  // with what comes before the forward pass; all of a step without one
  std::int64_t hook = 0;  // of the reductions of buckets, also while the backward pass computes
  Split split;
  std::uint64_t sent = 0;        // bytes, for buckets
  std::uint64_t call_bytes = 0;  // of the tensors of all collectives
};

// Adds one step. A pure function of both.
void add_step(StepTotals& totals, const StepTimes& step);

}  // namespace gradwire::observe

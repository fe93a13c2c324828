// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Records the times of a step on this rank: the phases, which the trainer reports; the buckets, whose hook reports when
// it runs; and the collectives within the hook, from gradwire's trace points.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "gradwire/base/trace.h"

namespace char_lm {

// Seconds since the step began.
struct Span {
  double begin = 0;
  double end = 0;
};

struct BucketTimes {
  std::int64_t bytes = 0;           // of its gradients
  std::int64_t sent = 0;            // by this rank, as ProcessGroup::payload_bytes() counts
  double ready = 0;                 // when its last gradient was ready
  Span hook;                        // when the hook ran for this bucket
  std::vector<Span> calls;          // of collectives within the hook, one after the other
  bool on_training_thread = false;  // not on a lane
};

struct StepTimes {
  double seconds = 0;
  Span forward;
  Span backward;  // includes the wait at its end
  Span wait;      // from the last bucket's readiness to the end of the backward pass; empty without buckets
  Span optimizer;
  std::vector<BucketTimes> buckets;
};

// The time of the training thread in seconds, in three parts whose sum is the time of the step.
struct Split {
  double compute = 0;        // the thread computes, whatever the lanes do meanwhile
  double communication = 0;  // the thread waits for a collective; includes waiting for other ranks
  double hook = 0;           // the thread waits for the rest: casts, compression, wake-ups, writing back
};

Split split_of(const StepTimes& step);

struct Totals {
  double hook_seconds = 0;  // from the calls of hooks to their results, also while backward computes
  std::int64_t sent = 0;
  Split split;
};

// Is the sink of gradwire's trace points while it lives, so a process may have one StepRecorder at a time. One thread
// reports steps and phases; any thread may report hooks.
class StepRecorder {
 public:
  StepRecorder();
  ~StepRecorder();
  StepRecorder(const StepRecorder&) = delete;
  StepRecorder& operator=(const StepRecorder&) = delete;

  // A step consists of begin_step(), the three phases in this order, and end_step().
  void begin_step();
  void begin_forward();
  void begin_backward();
  void begin_optimizer();
  void end_step();

  // While this object lives, the thread that made it runs the hook of a bucket of `bytes` bytes.
  class HookCall {
   public:
    HookCall(StepRecorder& recorder, std::size_t bucket, std::int64_t bytes);
    ~HookCall();
    HookCall(const HookCall&) = delete;
    HookCall& operator=(const HookCall&) = delete;
  };
  // Reports that the hook's result is ready. On a lane, call it before the HookCall ends.
  void hook_done(std::size_t bucket, std::int64_t sent);

  // The last step that has ended. Call it on the thread of the steps.
  const StepTimes& last_step() const { return last_; }
  // The totals of all steps that have ended since construction.
  const Totals& totals() const { return totals_; }

 private:
  static void on_event(void* self, const gradwire::trace::Event& event) noexcept;
  double now() const;
  BucketTimes& bucket(std::size_t index);

  std::mutex mutex_;  // of what follows; totals_ and last_ belong to the thread of the steps
  std::chrono::steady_clock::time_point start_;
  StepTimes step_;
  StepTimes last_;
  Totals totals_;
};

}  // namespace char_lm

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Where the time of a step goes on this rank: phases that the trainer names, buckets whose hook tells when it runs, and
// the collectives within it, which gradwire's trace points show.
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
  double ready = 0;                 // its last gradient is there
  Span hook;                        // runs, for this bucket
  std::vector<Span> calls;          // of collectives, within the hook; one after the other
  bool on_training_thread = false;  // not on a lane
};

struct StepTimes {
  double seconds = 0;
  Span forward;
  Span backward;  // with the waiting at its end
  Span wait;      // from the last bucket's readiness to the end of the backward pass; empty without buckets
  Span optimizer;
  std::vector<BucketTimes> buckets;
};

// The time of the thread that trains, in seconds; together they are the step's.
struct Split {
  double compute = 0;        // it computes, whatever lanes do meanwhile
  double communication = 0;  // it is kept waiting by a collective, other ranks' lateness included
  double hook = 0;           // it is kept waiting by the rest: casts and compression, waking up, writing back
};

Split split_of(const StepTimes& step);

struct Totals {
  double hook_seconds = 0;  // from hooks' calls to their results, whether backward went on meanwhile or not
  std::int64_t sent = 0;
  Split split;
};

// The sink of gradwire's trace points while it lives: one at a time in a process. Phases and steps on one thread, hooks
// on any.
class StepRecorder {
 public:
  StepRecorder();
  ~StepRecorder();
  StepRecorder(const StepRecorder&) = delete;
  StepRecorder& operator=(const StepRecorder&) = delete;

  // A step is: begin_step(), the three phases in this order, end_step().
  void begin_step();
  void begin_forward();
  void begin_backward();
  void begin_optimizer();
  void end_step();

  // While it lives, the thread that made it runs the hook of a bucket of `bytes`.
  class HookCall {
   public:
    HookCall(StepRecorder& recorder, std::size_t bucket, std::int64_t bytes);
    ~HookCall();
    HookCall(const HookCall&) = delete;
    HookCall& operator=(const HookCall&) = delete;
  };
  // The hook's result is there: on a lane, before its HookCall ends.
  void hook_done(std::size_t bucket, std::int64_t sent);

  // The last step that ended. On the thread of the steps.
  const StepTimes& last_step() const { return last_; }
  // Since it was made; of steps that ended.
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

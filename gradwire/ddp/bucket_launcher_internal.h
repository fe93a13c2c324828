// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How buckets are reduced: on lanes, or on the thread of the backward pass.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/ddp/comm_hook.h"
#include "gradwire/ddp/failure_internal.h"
#include "gradwire/ddp/grad_bucket.h"
#include "gradwire/ddp/lane_internal.h"
#include "gradwire/ddp/stream_fence_internal.h"

namespace gradwire::internal {

// All that the reduction of one bucket needs: a lane reads nothing else of the Reducer's.
struct BucketJob {
  std::shared_ptr<const BucketLayout> layout;
  at::Tensor buffer;               // undefined: of sparse gradients
  at::Tensor sparse;               // this rank's sparse gradient; undefined: no entries
  StreamFence filled;              // the streams that wrote this rank's gradients
  std::shared_ptr<CommHook> hook;  // null: plain averaging
  ReduceOp op;                     // of plain averaging
  bool divide = false;             // after plain averaging
  bool keep_in_buffer = false;     // the average is to be in `buffer`, wherever a hook leaves it
  int divisor = 1;
  bool is_last = false;  // see GradBucket
  bool joined = false;
  CallTag tag;

  std::size_t bucket() const noexcept { return layout->index; }
  at::Device device() const { return layout->device; }
};

// What became of it.
struct BucketResult {
  at::Tensor average;  // undefined: the reduction failed
  std::chrono::steady_clock::time_point end;
  StreamFence reduced;  // the streams that made the average
};

// The duplicates of the group that carry buckets, the lanes, and the jobs under way. One thread at a time calls it,
// under the Reducer's lock; what lanes write has a lock of its own. `failure` and what jobs hold outlive it.
class BucketLauncher final {
 public:
  // `owner`: whose hooks these are, for HookScope.
  BucketLauncher(std::shared_ptr<ProcessGroup> group, Failure& failure, const void* owner);
  // Waits for the lanes.
  ~BucketLauncher();
  BucketLauncher(const BucketLauncher&) = delete;
  BucketLauncher& operator=(const BucketLauncher&) = delete;

  // Collective, once, over a group that has duplicates: makes one a lane, or one for hooks on the thread of the
  // backward pass. Without a call of start() those use the group itself.
  void start(int lanes);
  // Collective in the groups that the hook names, but for those that an earlier one named: makes duplicates of them.
  // Throws UnsupportedError where lanes need a duplicate that cannot be made.
  void duplicate_groups_of(const CommHook& hook);
  // How many lanes run jobs with this hook; 0: the caller's thread does.
  int lanes_for(const CommHook* hook) const noexcept;

  // Forgets the results there were; `buckets` jobs come.
  void expect(std::size_t buckets) GRADWIRE_EXCLUDES(results_mutex_);
  // Starts the job, or runs it. What goes wrong on a lane is reported to the Failure, on this thread it is thrown.
  void launch(BucketJob job) GRADWIRE_EXCLUDES(results_mutex_);
  // Returns when all have ended. Throws the error of a job on this thread; AbortedError where the thread is
  // interrupted.
  void wait() GRADWIRE_EXCLUDES(results_mutex_);
  // After wait(): the results, by bucket. The caller's streams go on when those of the lanes have got so far.
  std::vector<BucketResult> take_results() GRADWIRE_EXCLUDES(results_mutex_);
  // After an error: waits for the lanes and their streams.
  void give_up() GRADWIRE_EXCLUDES(results_mutex_);

 private:
  // A job on the caller's thread, from its start to wait().
  struct UnderWay {
    BucketJob job;
    Future future;               // null: only the Work can be waited for
    std::shared_ptr<Work> work;  // kept until its end; a user's group may hold it nowhere
  };
  void run_on_lane(const BucketJob& job, Lane& lane) GRADWIRE_EXCLUDES(results_mutex_);
  at::Tensor reduce_on_lane(const BucketJob& job, Lane& lane) const;
  void run_here(BucketJob job) GRADWIRE_EXCLUDES(results_mutex_);
  at::Tensor reduce_here(UnderWay& started) const;
  at::Tensor end_of(const UnderWay& started) const;
  GradBucket argument_of(const BucketJob& job, ProcessGroup& group) const;
  at::Tensor checked(const BucketJob& job, at::Tensor result) const;
  void keep(const BucketJob& job, at::Tensor average) GRADWIRE_EXCLUDES(results_mutex_);
  void mark_reduced(const BucketJob& job) GRADWIRE_EXCLUDES(results_mutex_);

  const std::shared_ptr<ProcessGroup> group_;
  Failure& failure_;
  const void* const owner_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  // Without lanes, over a group that has duplicates: where this thread leads a hook's calls. Empty without duplicates.
  std::vector<LaneScope::Route> routes_here_;
  std::vector<UnderWay> under_way_;
  PendingCount running_;  // jobs on lanes
  Mutex results_mutex_;
  std::vector<BucketResult> results_ GRADWIRE_GUARDED_BY(results_mutex_);
};

}  // namespace gradwire::internal

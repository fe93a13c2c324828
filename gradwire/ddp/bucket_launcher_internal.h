// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The launcher reduces buckets: on lanes, or on the thread of the backward pass.
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

// The most lanes of a DDP object.
inline constexpr int kMaxLanes = 8;

// The data of one bucket's reduction. A lane reads no other data of the Reducer.
struct BucketJob {
  std::shared_ptr<const BucketLayout> layout;
  at::Tensor buffer;               // undefined: the bucket of a sparse gradient
  at::Tensor sparse;               // this rank's sparse gradient; undefined: no entries
  StreamFence filled;              // the streams that wrote this rank's gradients
  std::shared_ptr<CommHook> hook;  // null: plain averaging
  bool compare_hooks = false;      // the ranks compare their hooks first
  ReduceOp op;                     // the operation of plain averaging
  bool divide = false;             // divide after plain averaging
  bool keep_in_buffer = false;     // the average must end up in `buffer`, also when a hook returns other memory
  int divisor = 1;
  bool is_last = false;  // see GradBucket
  bool joined = false;
  std::vector<std::size_t> absent = {};  // see GradBucket
  CallTag tag;
  std::uint32_t caller = 0;  // the line of the forward pass, for the flight recorder (observe::caller_line())

  std::size_t bucket() const noexcept { return layout->index; }
  at::Device device() const { return layout->device; }
};

// The result of one bucket's reduction.
struct BucketResult {
  at::Tensor average;  // undefined: the reduction failed
  std::chrono::steady_clock::time_point end;
  StreamFence reduced;  // the streams that made the average
};

// Owns the lanes, the group's duplicates that carry buckets, and the jobs under way. One thread at a time calls the
// launcher, under the Reducer's lock. The results, which lanes write, have a lock of their own. `failure` and the
// objects in the jobs must outlive the launcher.
class BucketLauncher final {
 public:
  // `owner`: the owner of the hooks, for HookScope.
  BucketLauncher(std::shared_ptr<ProcessGroup> group, Failure& failure, const void* owner);
  // Waits for the lanes.
  ~BucketLauncher();
  BucketLauncher(const BucketLauncher&) = delete;
  BucketLauncher& operator=(const BucketLauncher&) = delete;

  // Collective, called once, over a group that can be duplicated: makes one duplicate for each lane, or one for hooks
  // on the thread of the backward pass when `lanes` is 0. Without start(), hooks on that thread use the group itself.
  void start(int lanes);
  // Uses so many lanes, at least 1, from the next job on, and makes those that are missing. Collective; after start()
  // with lanes, and only while no job is under way. Call duplicate_groups_of() for the hook again then.
  void use_lanes(int lanes);
  // Makes duplicates of the groups that the hook names and that no earlier hook named. Collective in these groups.
  // Throws UnsupportedError when a lane needs the duplicate of a group that cannot be duplicated.
  void duplicate_groups_of(const CommHook& hook);
  // The number of lanes that run jobs with this hook. 0: the caller's thread runs the jobs.
  int lanes_for(const CommHook* hook) const noexcept;

  // Clears the results and prepares for `buckets` jobs.
  void expect(std::size_t buckets) GRADWIRE_EXCLUDES(results_mutex_);
  // Starts the job on a lane, or runs it on this thread. An error on a lane is reported to the Failure; an error on
  // this thread is thrown.
  void launch(BucketJob job) GRADWIRE_EXCLUDES(results_mutex_);
  // Returns when this rank's devices have written the gradients of the jobs since expect(). Throws the error of a
  // device that failed.
  void wait_until_filled();
  // Returns when all jobs have ended. Throws the error of a job on this thread, and AbortedError when the thread is
  // interrupted (gradwire/base/interrupt.h).
  void wait() GRADWIRE_EXCLUDES(results_mutex_);
  // Whether the devices have ended all reductions, after wait(). Throws the error of a device that failed.
  bool ended_on_devices() GRADWIRE_EXCLUDES(results_mutex_);
  // Returns the results by bucket, after wait(). The caller's current streams then wait for the lanes' streams.
  std::vector<BucketResult> take_results() GRADWIRE_EXCLUDES(results_mutex_);
  // After an error: waits for the lanes and their streams.
  void give_up() GRADWIRE_EXCLUDES(results_mutex_);

 private:
  // In the trace points, what tells the buckets of one DistributedDataParallel from those of another.
  std::uint64_t number() const noexcept { return reinterpret_cast<std::uintptr_t>(owner_); }
  // A job of the caller's thread, from its start to wait().
  struct UnderWay {
    BucketJob job;
    Future future;               // null: wait for the Work instead
    std::shared_ptr<Work> work;  // kept until the job ends: a user's group may not hold it
  };
  void run_on_lane(const BucketJob& job, Lane& lane) GRADWIRE_EXCLUDES(results_mutex_);
  at::Tensor reduce_on_lane(const BucketJob& job, Lane& lane) const;
  void run_here(BucketJob job) GRADWIRE_EXCLUDES(results_mutex_);
  at::Tensor reduce_here(UnderWay& started) const;
  void compare_hooks_here(const BucketJob& job, ProcessGroup& group) const;
  at::Tensor end_of(const UnderWay& started) const;
  GradBucket argument_of(const BucketJob& job, ProcessGroup& group) const;
  at::Tensor checked(const BucketJob& job, at::Tensor result) const;
  void keep(const BucketJob& job, at::Tensor average) GRADWIRE_EXCLUDES(results_mutex_);
  void mark_reduced(const BucketJob& job) GRADWIRE_EXCLUDES(results_mutex_);

  const std::shared_ptr<ProcessGroup> group_;
  Failure& failure_;
  const void* const owner_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  int used_lanes_ = 0;  // the first so many of lanes_
  // Without lanes, over a group that can be duplicated: the routes of a hook's calls on this thread. Else empty.
  std::vector<LaneScope::Route> routes_here_;
  OwnStreams side_streams_;  // for reductions on this thread
  std::vector<UnderWay> under_way_;
  StreamFence filled_;    // the streams that wrote the gradients of the jobs since expect()
  PendingCount running_;  // jobs on lanes
  Mutex results_mutex_;
  std::vector<BucketResult> results_ GRADWIRE_GUARDED_BY(results_mutex_);
};

}  // namespace gradwire::internal

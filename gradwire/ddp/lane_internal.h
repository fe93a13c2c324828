// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The threads on which DDP runs hooks.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/base/process.h"
#include "gradwire/ddp/stream_fence_internal.h"
#include "gradwire/process_group/lane_scope.h"

namespace gradwire::internal {

// Counts what is under way; wait() returns when all of it has ended. Thread-safe.
class PendingCount {
 public:
  void add() GRADWIRE_EXCLUDES(mutex_);
  void done() GRADWIRE_EXCLUDES(mutex_);
  void wait() GRADWIRE_EXCLUDES(mutex_);
  // The same; throws AbortedError where the calling thread is interrupted (gradwire/base/interrupt.h).
  void wait_unless_interrupted() GRADWIRE_EXCLUDES(mutex_);

 private:
  Mutex mutex_;
  ConditionVariable none_;
  std::size_t count_ GRADWIRE_GUARDED_BY(mutex_) = 0;
};

// A thread that runs jobs one after another, and the duplicates of groups that belong to it. Its BLAS and its parallel
// loops use one thread.
class Lane {
 public:
  // routes[0] is DDP's own group and its duplicate for this lane.
  Lane(int number, std::vector<LaneScope::Route> routes);
  // Runs what was submitted, then joins. Does nothing in a forked child.
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // Runs `job`, which must not throw, after those before it, and tells `pending` when it has run and nothing that it
  // held is left: a waiter may then end what the job's closure needs to be let go of (the interpreter whose lock a
  // captured ThreadLocalState wants). `pending` outlives the lane.
  void submit(std::function<void()> job, PendingCount& pending);

  // May change only while no job is under way.
  void set_routes(std::vector<LaneScope::Route> routes) { routes_ = std::move(routes); }
  const std::vector<LaneScope::Route>& routes() const noexcept { return routes_; }
  ProcessGroup& group() const noexcept { return *routes_.front().duplicate; }
  // Where jobs put their work on a device; for them alone.
  c10::Stream stream(const at::Device& device) { return streams_.on(device); }

 private:
  struct Job {
    std::function<void()> body;
    PendingCount* pending;
  };
  struct Queue {
    Mutex mutex;
    ConditionVariable changed;
    std::deque<Job> jobs GRADWIRE_GUARDED_BY(mutex);
    bool closed GRADWIRE_GUARDED_BY(mutex) = false;
  };
  static void run(Queue& queue);

  std::vector<LaneScope::Route> routes_;
  OwnStreams streams_;
  OwnerProcess owner_;
  // Shared with the thread, so that in a forked child, where the thread is not, the condition variable it sleeps on is
  // never destroyed.
  std::shared_ptr<Queue> queue_;
  Thread thread_;
};

}  // namespace gradwire::internal

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Lanes: the threads on which DDP runs hooks.
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

// Counts jobs under way. wait() returns when all jobs have ended. Thread-safe.
class PendingCount {
 public:
  void add() GRADWIRE_EXCLUDES(mutex_);
  void done() GRADWIRE_EXCLUDES(mutex_);
  void wait() GRADWIRE_EXCLUDES(mutex_);
  // The same, but throws AbortedError when the calling thread is interrupted (gradwire/base/interrupt.h).
  void wait_unless_interrupted() GRADWIRE_EXCLUDES(mutex_);

 private:
  Mutex mutex_;
  ConditionVariable none_;
  std::size_t count_ GRADWIRE_GUARDED_BY(mutex_) = 0;
};

// A thread that runs jobs one after another, with its own duplicates of groups. BLAS and parallel loops use one thread
// there.
class Lane {
 public:
  // routes[0] holds DDP's own group and the duplicate of this lane.
  Lane(int number, std::vector<LaneScope::Route> routes);
  // Runs all submitted jobs, then joins the thread. Does nothing in a forked child.
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // Runs `job` after all earlier jobs. `job` must not throw. Calls pending.done() after the job has run and its closure
  // has been destroyed: a waiter may then end an object that the destruction needs (the interpreter, whose lock a
  // captured ThreadLocalState takes). `pending` must outlive the lane.
  void submit(std::function<void()> job, PendingCount& pending);

  // Call set_routes() only while no job is under way.
  void set_routes(std::vector<LaneScope::Route> routes) { routes_ = std::move(routes); }
  const std::vector<LaneScope::Route>& routes() const noexcept { return routes_; }
  int number() const noexcept { return number_; }
  ProcessGroup& group() const noexcept { return *routes_.front().duplicate; }
  // The stream for the jobs' work on `device`. Only the jobs of this lane use the stream.
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

  const int number_;
  std::vector<LaneScope::Route> routes_;
  OwnStreams streams_;
  OwnerProcess owner_;
  // Shared with the thread. A forked child has no such thread, so there the queue, with the condition variable on which
  // the thread sleeps, is never destroyed.
  std::shared_ptr<Queue> queue_;
  Thread thread_;
};

}  // namespace gradwire::internal

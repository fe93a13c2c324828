// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The ordered sequence of one group: runs its collectives one after another, in the order in which they were called.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "gradwire/base/mutex.h"
#include "gradwire/base/process.h"

namespace gradwire::internal {

// A task runs
//   - on the calling thread, at once, when the call waits and no other task is queued or running; no thread is started
//     then, and none is switched to;
//   - otherwise on the one worker thread, which starts with its first task, or on a thread that waits for the task and
//     finds no task running (Place::help());
//   - on the thread of a running task, when that task makes the call (a then-callback that starts a collective). The
//     thread cannot wait for itself. So the new task goes to the end of the queue, and the thread runs the queue up to
//     and including the new task. The order is kept, and a wait for the new task returns.
//
// A task must not throw. Thread-safe. Tasks hold no reference to the executor.
class Executor {
  struct Shared;

 public:
  using Task = std::function<void()>;

  // `name` shows in debuggers.
  explicit Executor(std::string name);
  // Calls close(), and waits until all queued tasks have run; on the worker itself, only calls close(). In a forked
  // child the destructor does nothing.
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // The place of a task in the queue. Outlives the executor. Thread-safe.
  class Place {
   public:
    Place() = default;
    // Runs the queue up to and including the task on the calling thread, if no task runs elsewhere: that is sooner than
    // the worker wakes. Stops before a task that is kept for the worker, unless this thread runs a task of the queue.
    // Otherwise, and where the task has run, does nothing; so it does in a forked child.
    void help() const;
    // From now on no thread that waits runs the task. Does nothing where the task has begun.
    void keep_for_worker() const;
    // Whether this thread runs a task of the same queue: nobody else can run the tasks after it then.
    bool runs_here() const;

   private:
    friend class Executor;
    std::shared_ptr<Shared> shared_;
    std::uint64_t number_ = 0;
    OwnerProcess owner_;
  };

  // When the worker is to begin: `soon` is within about 0.1 ms, and the call returns sooner.
  enum class Start { now, soon };
  // Queues `task`. Returns no place when closed: the task will not run. Throws ResourceError, and queues nothing, where
  // there is no thread for it; so does run().
  std::optional<Place> post(Task task, Start start = Start::now);

  // Runs `task` in its turn, and returns true when the task has run. Returns false when closed. When the thread is
  // interrupted (gradwire/base/interrupt.h) while it waits for its turn, calls `on_interrupt` once, on this thread, and
  // waits on: `on_interrupt` makes the tasks end soon. A null one: the wait is not interrupted.
  bool run(const Task& task, const Task& on_interrupt = nullptr);

  // Runs `task` on this thread where no task is queued or running; false: it did not.
  bool run_if_idle(const Task& task);

  // Refuses further tasks. Queued tasks still run.
  void close();

  // Calls close(), and waits until all queued tasks have run and the worker has ended. On the worker itself, and on a
  // thread that runs a task, only calls close(). `on_interrupt` is as in run().
  void finish(const Task& on_interrupt = nullptr);

 private:
  static void work(Shared& shared);

  const std::string name_;
  const OwnerProcess owner_;
  std::shared_ptr<Shared> shared_;  // of this object and of its worker
  Mutex worker_mutex_;              // never taken while shared_->mutex is held
  Thread worker_ GRADWIRE_GUARDED_BY(worker_mutex_);

  void start_worker();
  // Whether a task that is queued now may need the worker: not where a task runs here, which runs the queue itself.
  bool needs_worker();
};

}  // namespace gradwire::internal

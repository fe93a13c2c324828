// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The ordered sequence of one group: runs its collectives one after another, in the order in which they were called.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "gradwire/base/mutex.h"
#include "gradwire/base/process.h"

namespace gradwire::internal {

// A task runs
//   - on the calling thread, at once, when the call waits and no other task is queued or running; no thread is started
//     then, and none is switched to;
//   - otherwise on the one worker thread, which starts with its first task;
//   - on the thread of a running task, when that task makes the call (a then-callback that starts a collective). The
//     thread cannot wait for itself. So the new task goes to the end of the queue, and the thread runs the queue up to
//     and including the new task. The order is kept, and a wait for the new task returns.
//
// A task must not throw. Thread-safe. Tasks hold no reference to the executor.
class Executor {
 public:
  using Task = std::function<void()>;

  // `name` shows in debuggers.
  explicit Executor(std::string name);
  // Calls close(), and waits until all queued tasks have run; on the worker itself, only calls close(). In a forked
  // child the destructor does nothing.
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Queues `task`. Returns false when closed: the task will not run.
  bool post(Task task);

  // Runs `task` in its turn, and returns true when the task has run. Returns false when closed.
  bool run(const Task& task);

  // Refuses further tasks. Queued tasks still run.
  void close();

  // Calls close(), and waits until all queued tasks have run and the worker has ended. On the worker itself, and on a
  // thread that runs a task, only calls close().
  void finish();

 private:
  struct Shared;
  static void work(Shared& shared);

  const std::string name_;
  const OwnerProcess owner_;
  std::shared_ptr<Shared> shared_;  // of this object and of its worker
  Mutex worker_mutex_;              // never taken while shared_->mutex is held
  Thread worker_ GRADWIRE_GUARDED_BY(worker_mutex_);

  void start_worker();
};

}  // namespace gradwire::internal

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

// Three ways lead to the run of a task:
//   - a call that waits, when nothing is queued or running: at once, on the calling thread (no thread is started, no
//     switch of threads);
//   - a call that waits, otherwise, and every call that does not: on one worker thread, which starts with the first;
//   - a call out of a task's own end (a then-callback that starts a further collective): it cannot wait for the worker,
//     because it is the worker. It takes its place at the end of the queue and runs everything up to and including
//     itself, so that order is kept and waiting for it returns.
//
// A task must not throw. Thread-safe. Tasks hold no reference to it.
class Executor {
 public:
  using Task = std::function<void()>;

  // `name` shows in debuggers.
  explicit Executor(std::string name);
  // close(), and waits until everything that was queued has run; on the worker itself it only closes. In a forked child
  // it lets everything be.
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Queues `task`. False when closed: the task will not run.
  bool post(Task task);

  // Runs `task` in its turn and returns when it has run. False when closed.
  bool run(const Task& task);

  // Takes no task from now on. Those that are queued still run.
  void close();

  // close(), and waits until everything that was queued has run and the worker is gone. On the worker itself, and on a
  // thread that runs a task, it only closes.
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

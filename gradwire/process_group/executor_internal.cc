// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/process_group/executor_internal.h"

#include <cstdint>
#include <deque>
#include <thread>
#include <utility>

#include "gradwire/process_group/parked_threads_internal.h"

namespace gradwire::internal {

struct Executor::Shared {
  Mutex mutex;
  ConditionVariable changed;
  std::deque<Task> queue GRADWIRE_GUARDED_BY(mutex);
  bool running GRADWIRE_GUARDED_BY(mutex) = false;
  std::thread::id runner GRADWIRE_GUARDED_BY(mutex);  // who runs a task, while `running`
  bool closed GRADWIRE_GUARDED_BY(mutex) = false;

  bool running_here() const GRADWIRE_REQUIRES(mutex) { return running && runner == std::this_thread::get_id(); }
  bool idle() const GRADWIRE_REQUIRES(mutex) { return !running && queue.empty(); }

  // Runs the first task of the queue. The lock is open while it runs.
  void run_first(MutexLock& lock) GRADWIRE_REQUIRES(mutex) GRADWIRE_NO_THREAD_SAFETY_ANALYSIS {
    Task task = std::move(queue.front());
    queue.pop_front();
    const bool nested = running;
    running = true;
    runner = std::this_thread::get_id();
    lock.unlock();
    task();
    task = nullptr;  // what it holds may be the last reference to something that comes back here
    lock.lock();
    if (nested) return;
    running = false;
    changed.notify_all();
  }
};

Executor::Executor(std::string name) : name_(std::move(name)), shared_(std::make_shared<Shared>()) {}

Executor::~Executor() {
  if (!owner_.is_current()) {
    // A fork may have copied a lock that is held and a condition that is waited on, and both hang when they are
    // destroyed.
    static_cast<void>(std::make_unique<std::shared_ptr<Shared>>(std::move(shared_)).release());
    return;
  }
  close();
  MutexLock lock(worker_mutex_);
  // A then-callback dropped the last reference to the group. The worker goes on to the end of the queue without it.
  if (worker_.is_current()) park_thread(std::move(worker_));
}

void Executor::start_worker() {
  MutexLock lock(worker_mutex_);
  if (worker_.joinable()) return;
  join_parked_threads();
  worker_ = Thread(name_, [shared = shared_] { work(*shared); });
}

void Executor::work(Shared& shared) {
  MutexLock lock(shared.mutex);
  while (true) {
    while (shared.running || shared.queue.empty()) {
      if (shared.closed && shared.idle()) return;
      shared.changed.wait(lock);
    }
    shared.run_first(lock);
  }
}

bool Executor::post(Task task) {
  {
    MutexLock lock(shared_->mutex);
    if (shared_->closed) return false;
    shared_->queue.push_back(std::move(task));
    if (shared_->running_here()) {
      while (!shared_->queue.empty()) shared_->run_first(lock);
      return true;
    }
    shared_->changed.notify_all();
  }
  start_worker();
  return true;
}

bool Executor::run(const Task& task) {
  bool done = false;
  {
    MutexLock lock(shared_->mutex);
    if (shared_->closed) return false;
    if (shared_->idle()) {
      shared_->running = true;
      shared_->runner = std::this_thread::get_id();
      lock.unlock();
      task();
      lock.lock();
      shared_->running = false;
      shared_->changed.notify_all();
      return true;
    }
    shared_->queue.push_back([&] {
      task();
      MutexLock done_lock(shared_->mutex);
      done = true;
      shared_->changed.notify_all();
    });
    if (shared_->running_here()) {
      while (!done) shared_->run_first(lock);
      return true;
    }
    shared_->changed.notify_all();
  }
  start_worker();
  MutexLock lock(shared_->mutex);
  while (!done) shared_->changed.wait(lock);
  return true;
}

void Executor::close() {
  MutexLock lock(shared_->mutex);
  shared_->closed = true;
  shared_->changed.notify_all();
}

void Executor::finish() {
  {
    MutexLock lock(shared_->mutex);
    shared_->closed = true;
    shared_->changed.notify_all();
    if (shared_->running_here()) return;
    while (!shared_->idle()) shared_->changed.wait(lock);
  }
  MutexLock lock(worker_mutex_);
  worker_.join();
}

}  // namespace gradwire::internal

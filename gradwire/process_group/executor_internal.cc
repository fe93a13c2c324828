// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/process_group/executor_internal.h"

#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <thread>
#include <utility>

#include "gradwire/base/deadline.h"
#include "gradwire/base/interrupt.h"
#include "gradwire/process_group/parked_threads_internal.h"

namespace gradwire::internal {

namespace {

// After a task that could start soon, the worker sleeps so long at a time, so often: a next such task then wakes
// nobody, which takes longer than a small call. Each nap stops a thread that computes on the same processor for
// microseconds, so the naps together must not cost much more than one wake-up, and there are none after longer tasks.
constexpr std::chrono::microseconds kNap{50};
constexpr int kNaps = 4;

// The interruption of one wait of the calling thread.
class Interruption {
 public:
  explicit Interruption(const Executor::Task& act) : act_(act), check_(act ? interrupt_check() : nullptr) {}
  // Whether there is one to look for.
  bool is_possible() const noexcept { return check_ != nullptr; }
  // Acts when the thread was interrupted. The lock is open meanwhile. What the act throws is thrown by rethrow(): the
  // wait goes on, because tasks of the queue refer to the stack of the caller.
  void look(MutexLock& lock) GRADWIRE_NO_THREAD_SAFETY_ANALYSIS {
    lock.unlock();
    if (check_()) {
      check_ = nullptr;
      try {
        act_();
      } catch (...) {
        problem_ = std::current_exception();
      }
    }
    lock.lock();
  }
  void rethrow() const {
    if (problem_) std::rethrow_exception(problem_);
  }

 private:
  const Executor::Task& act_;
  InterruptCheck check_;
  std::exception_ptr problem_;
};

}  // namespace

struct Executor::Shared {
  Mutex mutex;
  ConditionVariable work_to_do;  // for the worker, while it sleeps
  ConditionVariable changed;     // for callers
  int callers GRADWIRE_GUARDED_BY(mutex) = 0;
  enum class Worker { awake, naps, sleeps } worker GRADWIRE_GUARDED_BY(mutex) = Worker::awake;
  Start last_posted GRADWIRE_GUARDED_BY(mutex) = Start::now;
  struct Queued {
    Task task;
    bool is_for_worker = false;  // Place::keep_for_worker()
  };
  std::deque<Queued> queue GRADWIRE_GUARDED_BY(mutex);
  std::uint64_t first GRADWIRE_GUARDED_BY(mutex) = 0;  // the number of the first task of the queue, over all tasks
  bool running GRADWIRE_GUARDED_BY(mutex) = false;
  std::thread::id runner GRADWIRE_GUARDED_BY(mutex);  // who runs a task, while `running`
  bool closed GRADWIRE_GUARDED_BY(mutex) = false;

  bool running_here() const GRADWIRE_REQUIRES(mutex) { return running && runner == std::this_thread::get_id(); }
  bool idle() const GRADWIRE_REQUIRES(mutex) { return !running && queue.empty(); }

  // Nobody is woken in vain: that takes longer than a small call.
  void tell_callers() GRADWIRE_REQUIRES(mutex) {
    if (callers > 0) changed.notify_all();
  }
  void tell_worker() GRADWIRE_REQUIRES(mutex) {
    if (worker_misses(Start::now)) work_to_do.notify_one();
  }
  // The worker does not look by itself at what there is to do.
  bool worker_misses(Start start) const GRADWIRE_REQUIRES(mutex) {
    const bool looks_itself = worker == Worker::awake || (worker == Worker::naps && start == Start::soon);
    return !looks_itself && !running && (closed || !queue.empty());
  }
  // Until something has changed, or it was time to look for the interruption.
  void wait_as_caller(MutexLock& lock, Interruption& interruption) GRADWIRE_REQUIRES(mutex) {
    ++callers;
    if (interruption.is_possible()) {
      const bool is_time = changed.wait_until(lock, Deadline::after(kInterruptLook).point()) == std::cv_status::timeout;
      if (is_time) interruption.look(lock);
    } else {
      changed.wait(lock);
    }
    --callers;
  }
  // No task runs any more.
  void stop_running() GRADWIRE_REQUIRES(mutex) {
    running = false;
    tell_callers();
    tell_worker();
  }

  std::uint64_t push(Task task) GRADWIRE_REQUIRES(mutex) {
    queue.push_back({std::move(task)});
    return first + queue.size() - 1;
  }

  // Runs the first task of the queue. The lock is open while it runs.
  void run_first(MutexLock& lock) GRADWIRE_REQUIRES(mutex) GRADWIRE_NO_THREAD_SAFETY_ANALYSIS {
    Task task = std::move(queue.front().task);
    queue.pop_front();
    ++first;
    const bool nested = running;
    running = true;
    runner = std::this_thread::get_id();
    lock.unlock();
    task();
    task = nullptr;  // what it holds may be the last reference to something that comes back here
    lock.lock();
    if (!nested) stop_running();
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
  using Worker = Shared::Worker;
  MutexLock lock(shared.mutex);
  int naps = 0;
  std::uint64_t seen = 0;
  while (true) {
    while (shared.running || shared.queue.empty()) {
      if (shared.closed && shared.idle()) return;
      if (std::exchange(seen, shared.first) != shared.first) naps = shared.last_posted == Start::soon ? kNaps : 0;
      if (naps > 0) {
        --naps;
        shared.worker = Worker::naps;
        shared.work_to_do.wait_for(lock, kNap);
      } else {
        shared.worker = Worker::sleeps;
        shared.work_to_do.wait(lock);
      }
      shared.worker = Worker::awake;
    }
    shared.run_first(lock);
  }
}

std::optional<Executor::Place> Executor::post(Task task, Start start) {
  Place place;
  place.shared_ = shared_;
  bool wakes_worker = false;
  // Before the task is queued: where the thread is refused, nothing has happened.
  if (needs_worker()) start_worker();
  {
    MutexLock lock(shared_->mutex);
    if (shared_->closed) return std::nullopt;
    place.number_ = shared_->push(std::move(task));
    shared_->last_posted = start;
    if (shared_->running_here()) {
      while (shared_->first <= place.number_) shared_->run_first(lock);
      return place;
    }
    wakes_worker = shared_->worker_misses(start);
  }
  // With the mutex free: the worker needs it first of all.
  if (wakes_worker) shared_->work_to_do.notify_one();
  return place;
}

bool Executor::Place::runs_here() const {
  if (shared_ == nullptr || !owner_.is_current()) return false;
  MutexLock lock(shared_->mutex);
  return shared_->running_here();
}

void Executor::Place::help() const {
  if (shared_ == nullptr || !owner_.is_current()) return;
  MutexLock lock(shared_->mutex);
  while (shared_->first <= number_ &&
         (shared_->running_here() || (!shared_->running && !shared_->queue.front().is_for_worker)))
    shared_->run_first(lock);
}

void Executor::Place::keep_for_worker() const {
  if (shared_ == nullptr || !owner_.is_current()) return;
  MutexLock lock(shared_->mutex);
  if (shared_->first <= number_) shared_->queue[number_ - shared_->first].is_for_worker = true;
}

bool Executor::run_if_idle(const Task& task) {
  MutexLock lock(shared_->mutex);
  if (shared_->closed || !shared_->idle()) return false;
  shared_->running = true;
  shared_->runner = std::this_thread::get_id();
  lock.unlock();
  task();
  lock.lock();
  shared_->stop_running();
  return true;
}

bool Executor::needs_worker() {
  MutexLock lock(shared_->mutex);
  return !shared_->closed && !shared_->running_here();
}

bool Executor::run(const Task& task, const Task& on_interrupt) {
  if (run_if_idle(task)) return true;
  // Before the task is queued: where the thread is refused, nothing has happened.
  if (needs_worker()) start_worker();
  bool done = false;
  {
    MutexLock lock(shared_->mutex);
    if (shared_->closed) return false;
    shared_->push([&] {
      task();
      MutexLock done_lock(shared_->mutex);
      done = true;
      shared_->tell_callers();
    });
    if (shared_->running_here()) {
      while (!done) shared_->run_first(lock);
      return true;
    }
    shared_->tell_worker();
  }
  Interruption interruption(on_interrupt);
  MutexLock lock(shared_->mutex);
  while (!done) shared_->wait_as_caller(lock, interruption);
  lock.unlock();
  interruption.rethrow();
  return true;
}

void Executor::close() {
  MutexLock lock(shared_->mutex);
  shared_->closed = true;
  shared_->tell_worker();
}

void Executor::finish(const Task& on_interrupt) {
  Interruption interruption(on_interrupt);
  {
    MutexLock lock(shared_->mutex);
    shared_->closed = true;
    shared_->tell_worker();
    if (shared_->running_here()) return;
    while (!shared_->idle()) shared_->wait_as_caller(lock, interruption);
  }
  {
    MutexLock lock(worker_mutex_);
    worker_.join();
  }
  interruption.rethrow();
}

}  // namespace gradwire::internal

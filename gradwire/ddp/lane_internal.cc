// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/lane_internal.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>

#include <utility>

#include "gradwire/base/deadline.h"
#include "gradwire/base/interrupt.h"
#include "gradwire/base/strings.h"

namespace gradwire::internal {
namespace {

// at::set_num_threads() would change the whole process. OpenMP and MKL have settings for one thread. Their functions
// are looked up by name, because libtorch brings its own copies of these libraries.
void use_one_compute_thread() {
  at::init_num_threads();
  at::internal::lazy_init_num_threads();
  for (const char* name : {"omp_set_num_threads", "MKL_Set_Num_Threads_Local"}) {
    if (void* symbol = dlsym(RTLD_DEFAULT, name)) reinterpret_cast<void (*)(int)>(symbol)(1);
  }
}

}  // namespace

void PendingCount::add() {
  MutexLock lock(mutex_);
  ++count_;
}

void PendingCount::done() {
  MutexLock lock(mutex_);
  if (--count_ == 0) none_.notify_all();
}

void PendingCount::wait() {
  MutexLock lock(mutex_);
  while (count_ != 0) none_.wait(lock);
}

void PendingCount::wait_unless_interrupted() {
  if (interrupt_check() == nullptr) return wait();
  MutexLock lock(mutex_);
  while (count_ != 0) {
    if (none_.wait_until(lock, Deadline::after(kInterruptLook).point()) == std::cv_status::timeout)
      throw_if_interrupted("the reduction of gradients");
  }
}

Lane::Lane(int number, std::vector<LaneScope::Route> routes)
    : number_(number),
      routes_(std::move(routes)),
      queue_(std::make_shared<Queue>()),
      thread_(concat("gw-lane-", number), [queue = queue_] { run(*queue); }) {}

Lane::~Lane() {
  // A forked child may have copied the mutex while the thread held it.
  if (!owner_.is_current()) return;
  MutexLock lock(queue_->mutex);
  queue_->closed = true;
  queue_->changed.notify_one();
}

void Lane::submit(std::function<void()> job, PendingCount& pending) {
  owner_.require_current("A DistributedDataParallel");
  MutexLock lock(queue_->mutex);
  queue_->jobs.push_back({std::move(job), &pending});
  pending.add();
  queue_->changed.notify_one();
}

void Lane::run(Queue& queue) {
  use_one_compute_thread();
  MutexLock lock(queue.mutex);
  while (true) {
    while (queue.jobs.empty() && !queue.closed) queue.changed.wait(lock);
    if (queue.jobs.empty()) return;
    Job job = std::move(queue.jobs.front());
    queue.jobs.pop_front();
    lock.unlock();
    job.body();
    job.body = nullptr;
    job.pending->done();
    lock.lock();
  }
}

}  // namespace gradwire::internal

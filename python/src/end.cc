// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The end of the interpreter. A thread that wants the interpreter's lock while Python ends is ended where it waits, and
// the process with it (std::terminate). So the threads of groups end before: end_of_interpreter() runs in an atexit
// handler, when other threads still get the lock.
#include <pthread.h>
#include <pybind11/trampoline_self_life_support.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "binding.h"
#include "gradwire/base/interrupt.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/process.h"
#include "gradwire/process_group/init.h"
#include "gradwire/process_group/live_groups_internal.h"
#include "gradwire/process_group/parked_threads_internal.h"

namespace gradwire::python {
namespace {

using Groups = std::vector<std::shared_ptr<ProcessGroup>>;

// Longer than any orderly end takes, short enough for who waits for the prompt.
constexpr std::chrono::seconds kPatience{2};

// The thread that ends the interpreter, and whether there is one yet; whether the interpreter is gone.
std::thread::id ending_thread;
std::atomic<bool> ending{false};
std::atomic<bool> gone{false};

// Classes of Python's have no threads of gradwire's, and do as they like at the end.
bool is_pythons(const ProcessGroup& group) {
  return dynamic_cast<const py::trampoline_self_life_support*>(&group) != nullptr;
}

// Runs `call` for each group. A group that has failed told whoever waited; there is nobody left to tell.
template <class Call>
void for_each(const Groups& groups, const Call& call) {
  for (const auto& group : groups) {
    try {
      call(*group);
    } catch (const std::exception&) {
    }
  }
}

// Aborts groups, unless it is told within its time that they have ended.
class Impatience {
 public:
  explicit Impatience(const Groups& groups) : thread_("gw-impatience", [this, &groups] { watch(groups); }) {}
  ~Impatience() {
    MutexLock lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }
  Impatience(const Impatience&) = delete;
  Impatience& operator=(const Impatience&) = delete;

 private:
  void watch(const Groups& groups) {
    const auto limit = std::chrono::steady_clock::now() + kPatience;
    {
      MutexLock lock(mutex_);
      while (!ended_ && std::chrono::steady_clock::now() < limit) changed_.wait_until(lock, limit);
      if (ended_) return;
    }
    for_each(groups, [](ProcessGroup& group) { group.abort("the Python interpreter of this rank ended"); });
  }

  Mutex mutex_;
  ConditionVariable changed_;
  bool ended_ GRADWIRE_GUARDED_BY(mutex_) = false;
  Thread thread_;  // goes first: joined while the rest is there
};

// Threads of the program's that are in calls without the lock, which they take when they come back.
struct AwayThreads {
  std::atomic<int> count{0};
  std::atomic<bool> is_awaited{false};
  Mutex mutex;
  ConditionVariable changed;
};

AwayThreads& away_threads() {
  static AwayThreads* const threads = [] {
    // A forked child has none of them.
    ::pthread_atfork(nullptr, nullptr, [] { away_threads().count = 0; });
    return std::make_unique<AwayThreads>().release();  // threads may outlive static variables
  }();
  return *threads;
}

// Gives threads whose calls have ended with their groups the time to take the lock. This thread is one of the count.
void await_threads() {
  AwayThreads& threads = away_threads();
  const auto limit = std::chrono::steady_clock::now() + kPatience;
  threads.is_awaited = true;
  MutexLock lock(threads.mutex);
  while (threads.count > 1 && std::chrono::steady_clock::now() < limit) threads.changed.wait_until(lock, limit);
}

void end_of_interpreter() {
  Groups groups = internal::live_groups();
  std::erase_if(groups, [](const auto& group) { return is_pythons(*group); });
  {
    const Impatience impatience(groups);
    for_each(groups, [](ProcessGroup& group) { group.shutdown(); });
    try {
      destroy_process_group();
    } catch (const std::exception&) {
    }
  }
  internal::join_parked_threads();
  await_threads();
  set_interrupt_check(nullptr);
  ending_thread = std::this_thread::get_id();
  ending = true;
}

}  // namespace

WithoutLock::Away::Away() noexcept { ++away_threads().count; }

WithoutLock::Away::~Away() {
  AwayThreads& threads = away_threads();
  --threads.count;
  if (!threads.is_awaited) return;
  MutexLock lock(threads.mutex);
  threads.changed.notify_all();
}

bool may_take_lock() noexcept { return !gone && (!ending || std::this_thread::get_id() == ending_thread); }

void drop_unlocked(std::shared_ptr<void> object) {
  if (!may_take_lock() || PyGILState_Check() == 0) {
    object.reset();
    return;
  }
  const WithoutLock unlocked;
  object.reset();
}

void bind_end(py::module_& module) {
  Py_AtExit([] { gone = true; });
  module.def("end_of_interpreter", &end_of_interpreter, Unlocked(),
             "Ends all groups, and the threads that may want the interpreter's lock.");
}

}  // namespace gradwire::python

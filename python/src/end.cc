// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The end of the interpreter. A thread that wants the interpreter's lock while Python ends is ended where it waits, and
// the process with it (std::terminate). So the threads of groups end before: end_groups() and end_of_interpreter() run
// in an atexit handler (gradwire/_end.py), when other threads still get the lock.
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

void abort_all(const Groups& groups) {
  for_each(groups, [](ProcessGroup& group) { group.abort("the Python interpreter of this rank ended"); });
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
    abort_all(groups);
  }

  Mutex mutex_;
  ConditionVariable changed_;
  bool ended_ GRADWIRE_GUARDED_BY(mutex_) = false;
  Thread thread_;  // goes first: joined while the rest is there
};

// Threads within C++ that want the lock sooner or later. One that comes for it while Python ends is ended there, in the
// midst of C++, and the process with it.
struct ThreadsWithin {
  std::atomic<int> count{0};
  std::atomic<bool> is_awaited{false};
  Mutex mutex;
  ConditionVariable changed;
};

// How many objects WithinCpp of this thread there are.
thread_local int within_here = 0;

ThreadsWithin& threads_within() {
  static ThreadsWithin* const threads = [] {
    // A forked child has none of them but the one that forks, which may be in a call that came back to Python.
    ::pthread_atfork(nullptr, nullptr, [] { threads_within().count = within_here; });
    return std::make_unique<ThreadsWithin>().release();  // threads may outlive static variables
  }();
  return *threads;
}

// With the lock held: waits for a while until no thread is within C++; none comes there without the lock. Returns
// whether none is.
bool await_threads() {
  ThreadsWithin& threads = threads_within();
  threads.is_awaited = true;
  const auto limit = std::chrono::steady_clock::now() + kPatience;
  while (threads.count > 0 && std::chrono::steady_clock::now() < limit) {
    const WithoutLock unlocked;
    MutexLock lock(threads.mutex);
    if (threads.count > 1) threads.changed.wait_until(lock, limit);
  }
  return threads.count == 0;
}

// Returns the groups that it has shut down.
Groups shut_down_groups() {
  const WithoutLock unlocked;
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
  return groups;
}

// Returns whether threads of the program's were in calls.
bool end_groups() {
  const bool had_threads = threads_within().count > 0;
  Groups groups = shut_down_groups();
  if (!await_threads()) {
    // A thread may wait for a message, which no shutdown brings.
    {
      const WithoutLock unlocked;
      abort_all(groups);
    }
    await_threads();
  }
  const WithoutLock unlocked;
  groups.clear();
  return had_threads;
}

void end_of_interpreter() {
  set_interrupt_check(nullptr);
  ending_thread = std::this_thread::get_id();
  ending = true;
}

}  // namespace

WithinCpp::WithinCpp() noexcept {
  ++within_here;
  ++threads_within().count;
}

WithinCpp::~WithinCpp() {
  ThreadsWithin& threads = threads_within();
  --within_here;
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
  module.def("end_groups", &end_groups,
             "Ends all groups, and the threads that may want the interpreter's lock. Whether threads were in calls.");
  module.def("end_of_interpreter", &end_of_interpreter, "Nobody but this thread may take the lock from now on.");
}

}  // namespace gradwire::python

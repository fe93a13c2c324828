// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Clang's thread-safety annotations and a mutex that carries them; -Wthread-safety checks them in the clang preset.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "gradwire/base/process.h"

#if defined(__clang__)
#define GRADWIRE_ANNOTATION(x) __attribute__((x))
#else
#define GRADWIRE_ANNOTATION(x)
#endif
#define GRADWIRE_CAPABILITY(x) GRADWIRE_ANNOTATION(capability(x))
#define GRADWIRE_SCOPED_CAPABILITY GRADWIRE_ANNOTATION(scoped_lockable)
#define GRADWIRE_GUARDED_BY(x) GRADWIRE_ANNOTATION(guarded_by(x))
#define GRADWIRE_REQUIRES(...) GRADWIRE_ANNOTATION(requires_capability(__VA_ARGS__))
#define GRADWIRE_EXCLUDES(...) GRADWIRE_ANNOTATION(locks_excluded(__VA_ARGS__))
#define GRADWIRE_ACQUIRE(...) GRADWIRE_ANNOTATION(acquire_capability(__VA_ARGS__))
#define GRADWIRE_TRY_ACQUIRE(...) GRADWIRE_ANNOTATION(try_acquire_capability(__VA_ARGS__))
#define GRADWIRE_RELEASE(...) GRADWIRE_ANNOTATION(release_capability(__VA_ARGS__))
#define GRADWIRE_NO_THREAD_SAFETY_ANALYSIS GRADWIRE_ANNOTATION(no_thread_safety_analysis)

namespace gradwire {

// std::mutex with annotations.
class GRADWIRE_CAPABILITY("mutex") Mutex {
 public:
  // As the methods of std::mutex.
  void lock() GRADWIRE_ACQUIRE() { mutex_.lock(); }
  void unlock() GRADWIRE_RELEASE() { mutex_.unlock(); }
  bool try_lock() GRADWIRE_TRY_ACQUIRE(true) { return mutex_.try_lock(); }

 private:
  std::mutex mutex_;
};

// Holds a Mutex for a scope; unlock() and lock() in between are allowed (condition variables need them).
class GRADWIRE_SCOPED_CAPABILITY MutexLock {
 public:
  // Locks `mutex`, which must outlive the lock.
  explicit MutexLock(Mutex& mutex) GRADWIRE_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() GRADWIRE_RELEASE() {
    if (held_) mutex_.unlock();
  }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;
  void unlock() GRADWIRE_RELEASE() {
    held_ = false;
    mutex_.unlock();
  }
  void lock() GRADWIRE_ACQUIRE() {
    mutex_.lock();
    held_ = true;
  }

 private:
  Mutex& mutex_;
  bool held_ = true;
};

// std::condition_variable_any, for waits that hold a MutexLock: `while (!ready_) condition_.wait(lock);`
//
// May be destroyed in a forked child in whose parent a thread was waiting at the fork: destroying a
// std::condition_variable waits for its waiters, of which the child has none that could ever wake.
class ConditionVariable {
 public:
  ConditionVariable() : condition_() {}  // nobody waits
  ~ConditionVariable() {
    if (owner_.is_current()) condition_.~condition_variable_any();
  }
  ConditionVariable(const ConditionVariable&) = delete;
  ConditionVariable& operator=(const ConditionVariable&) = delete;

  // As the methods of std::condition_variable_any.
  void notify_one() noexcept { condition_.notify_one(); }
  void notify_all() noexcept { condition_.notify_all(); }
  void wait(MutexLock& lock) { condition_.wait(lock); }
  template <class Clock, class Duration>
  std::cv_status wait_until(MutexLock& lock, const std::chrono::time_point<Clock, Duration>& time) {
    return condition_.wait_until(lock, time);
  }
  template <class Rep, class Period>
  std::cv_status wait_for(MutexLock& lock, const std::chrono::duration<Rep, Period>& time) {
    return condition_.wait_for(lock, time);
  }

 private:
  union {  // so that the destructor above decides
    std::condition_variable_any condition_;
  };
  OwnerProcess owner_;
};

}  // namespace gradwire

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Clang's thread-safety annotations and a mutex that carries them; -Wthread-safety checks them in the clang preset.
#pragma once

#include <condition_variable>
#include <mutex>

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
  void lock() GRADWIRE_ACQUIRE() { mutex_.lock(); }
  void unlock() GRADWIRE_RELEASE() { mutex_.unlock(); }
  bool try_lock() GRADWIRE_TRY_ACQUIRE(true) { return mutex_.try_lock(); }

 private:
  std::mutex mutex_;
};

// Holds a Mutex for a scope; unlock() and lock() in between are allowed (condition variables need them).
class GRADWIRE_SCOPED_CAPABILITY MutexLock {
 public:
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

// Waits take a MutexLock: `while (!ready_) condition_.wait(lock);`
using ConditionVariable = std::condition_variable_any;

}  // namespace gradwire

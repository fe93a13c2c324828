// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The machine on which code under test runs: atomics, plain memory, futexes and mutexes of the model. Every access
// passes its line in the source, so that a mutant can weaken this access alone.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <string>
#include <type_traits>

#include "gradwire/base/mutex.h"
#include "tests/model/explorer.h"
#include "tests/model/memory.h"
#include "tests/model/mutant.h"
#include "tests/model/scheduler.h"

namespace gradwire::model {

// One run of a program. Only one run exists at a time.
class Run {
 public:
  Run(Explorer& explorer, ScheduleOptions options, Mutation& mutation)
      : explorer(explorer), memory(explorer), scheduler(explorer, memory, options), mutation(mutation) {
    now_ = this;
  }
  ~Run() { now_ = nullptr; }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;
  static Run& now() noexcept { return *now_; }

  Explorer& explorer;
  Memory memory;
  Scheduler scheduler;
  Mutation& mutation;
  int owner = -1;  // during construction of a slot or of private memory: its rank or thread
  bool is_private = false;

  void trace(const char* what, Site site, int place, std::uint64_t value) {
    if (!explorer.tracing()) return;
    explorer.trace("rank " + std::to_string(scheduler.rank()) + " line " + std::to_string(site.line) + ": " + what +
                   " #" + std::to_string(place) + " " + std::to_string(value));
  }

 private:
  static inline Run* now_ = nullptr;
};

template <class T>
class Atomic {
 public:
  Atomic(T value = {})  // NOLINT(google-explicit-constructor): as std::atomic
      : location_(Run::now().memory.add_location(bits(value))),
        owner_(Run::now().owner),
        is_private_(Run::now().is_private) {}
  Atomic(const Atomic&) = delete;
  Atomic& operator=(const Atomic&) = delete;

  T load(std::memory_order order, Site site = {__builtin_FILE(), __builtin_LINE()}) const {
    return access("loads", site, [&](Run& run, int thread) {
      const std::memory_order weaker = run.mutation.order(site, Access::load, order);
      if (!is_private_ && weaker != std::memory_order_seq_cst) run.scheduler.stay();
      return run.memory.load(thread, location_, weaker);
    });
  }
  void store(T value, std::memory_order order, Site site = {__builtin_FILE(), __builtin_LINE()}) {
    access("stores", site, [&](Run& run, int thread) {
      run.memory.store(thread, location_, bits(value), run.mutation.order(site, Access::store, order));
      return bits(value);
    });
  }
  // Read-modify-writes return nothing, because the code under test does not use their results.
  void exchange(T value, std::memory_order order, Site site = {__builtin_FILE(), __builtin_LINE()}) {
    replace("replaces", site, order, [&](T /*before*/) { return value; });
  }
  void fetch_add(T value, std::memory_order order, Site site = {__builtin_FILE(), __builtin_LINE()}) {
    replace("adds to", site, order, [&](T before) { return static_cast<T>(before + value); });
  }
  void fetch_sub(T value, std::memory_order order, Site site = {__builtin_FILE(), __builtin_LINE()}) {
    // Executed at once: a later load may still return the old value, and additions commute.
    if (order == std::memory_order_relaxed) Run::now().scheduler.stay();
    replace("takes from", site, order, [&](T before) { return static_cast<T>(before - value); });
  }

  int location() const noexcept { return location_; }
  int owner() const noexcept { return owner_; }

 private:
  static std::uint64_t bits(T value) noexcept { return static_cast<std::uint64_t>(value); }

  template <class Body>
  T access(const char* what, Site site, Body&& body) const {
    Run& run = Run::now();
    if (!is_private_) run.scheduler.point();
    const std::uint64_t value = body(run, run.scheduler.current());
    run.scheduler.observed(value);
    run.trace(what, site, location_, value);
    return static_cast<T>(value);
  }
  template <class Next>
  void replace(const char* what, Site site, std::memory_order order, Next&& next) {
    access(what, site, [&](Run& run, int thread) {
      const auto bits_of_next = [&](std::uint64_t before) { return bits(next(static_cast<T>(before))); };
      run.memory.replace(thread, location_, bits_of_next, run.mutation.order(site, Access::both, order));
      return std::uint64_t{0};
    });
  }

  const int location_;
  const int owner_;
  const bool is_private_;
};

// Memory that is not atomic: the race detector checks each access.
template <class T>
class Plain {
 public:
  Plain() : cell_(Run::now().memory.add_cell()) {}
  const T& read() const {
    Run::now().memory.read_cell(Run::now().scheduler.current(), cell_);
    Run::now().scheduler.observed(0);
    return value_;
  }
  T& write() {
    Run::now().memory.write_cell(Run::now().scheduler.current(), cell_);
    return value_;
  }

 private:
  const int cell_;
  T value_{};
};

class GRADWIRE_CAPABILITY("mutex") ModelMutex {
 public:
  ModelMutex() : mutex_(Run::now().memory.add_mutex()), is_private_(Run::now().is_private) {}
  void lock() GRADWIRE_ACQUIRE() {
    Run& run = Run::now();
    if (!is_private_) run.scheduler.point();
    while (held_) run.scheduler.block_while(held_);
    held_ = true;
    run.memory.acquire_mutex(run.scheduler.current(), mutex_);
    run.scheduler.observed(0);
  }
  void unlock() GRADWIRE_RELEASE() {
    held_ = false;
    Run::now().memory.release_mutex(Run::now().scheduler.current(), mutex_);
  }

 private:
  const int mutex_;
  const bool is_private_;
  bool held_ = false;
};

class GRADWIRE_SCOPED_CAPABILITY ModelLock {
 public:
  explicit ModelLock(ModelMutex& mutex) GRADWIRE_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~ModelLock() GRADWIRE_RELEASE() { mutex_.unlock(); }
  ModelLock(const ModelLock&) = delete;
  ModelLock& operator=(const ModelLock&) = delete;

 private:
  ModelMutex& mutex_;
};

// Sleeps while the word holds `seen`.
template <class T>
void futex_wait(const Atomic<T>& word, T seen) {
  Run& run = Run::now();
  run.scheduler.point();
  const bool equal =
      run.memory.kernel_compares(run.scheduler.current(), word.location(), static_cast<std::uint64_t>(seen));
  run.scheduler.observed(equal ? 1 : 0);
  run.trace(equal ? "sleeps on" : "need not sleep on", {}, word.location(), static_cast<std::uint64_t>(seen));
  if (equal) run.scheduler.sleep(word.location(), word.owner());
}

template <class T>
void futex_wake(const Atomic<T>& word, Site site) {
  Run& run = Run::now();
  if (run.mutation.drops_wake(site)) return;
  run.scheduler.point();
  run.memory.kernel_wakes(run.scheduler.current(), word.location());
  run.scheduler.wake(word.location());
  run.scheduler.observed(0);
  run.trace("wakes", site, word.location(), 0);
}

}  // namespace gradwire::model

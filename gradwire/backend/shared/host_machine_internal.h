// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The machine that Steps runs on outside of tests: std::atomic, futexes, the monotonic clock, and the World, which
// knows who is gone.
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <exception>

#include "gradwire/backend/fingerprint_internal.h"
#include "gradwire/backend/shared/futex_internal.h"
#include "gradwire/backend/shared/world_internal.h"
#include "gradwire/base/deadline.h"
#include "gradwire/base/interrupt.h"
#include "gradwire/base/mutex.h"

namespace gradwire::shared {

// What a rank says at the entry of a call: what it called, and where its buffer lies.
struct EntryCard {
  Fingerprint fingerprint;
  Location location;
};

class HostMachine {
 public:
  template <class T>
  using Atomic = std::atomic<T>;
  template <class T>
  class Plain {
   public:
    const T& read() const noexcept { return value_; }
    T& write() noexcept { return value_; }

   private:
    T value_;
  };
  using Mutex = gradwire::Mutex;
  using Lock = MutexLock;
  using Card = EntryCard;
  using Reason = std::exception_ptr;

  // What a waiter does with its processor before it sleeps. A duplicate's waiter gives it away: the thread of a lane
  // shares it with the thread that computes.
  enum class Waiting { spins, yields };

  HostMachine(const World& world, Waiting waiting) noexcept : world_(world), waiting_(waiting) {}

  bool spins() const noexcept { return waiting_ == Waiting::spins; }
  void set_deadline(Deadline deadline) noexcept { deadline_ = deadline; }  // of the call that begins

  void wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen) const noexcept {
    futex_wait(word, seen, std::clamp(deadline_.remaining(), Milliseconds(1), kSlice));
  }
  void wake(const std::atomic<std::uint32_t>& word) const noexcept { futex_wake_all(word); }

  bool is_gone(int peer) const noexcept { return world_.is_gone(peer); }
  bool interrupted() const noexcept { return interrupt_check() != nullptr && interrupt_check()(); }
  bool expired() const noexcept { return deadline_.expired(); }

  // Spins for kSpinTime, or gives the processor away kYields times, with some looks in between.
  class Patience {
   public:
    explicit Patience(HostMachine& machine) noexcept : machine_(machine) {}
    bool more() noexcept {
      if (pauses_ == kPausesBetweenLooks && !rest()) return false;
      ++pauses_;
      spin_pause();
      return true;
    }

   private:
    // Where threads share processors: how often a waiter gives its processor away before it sleeps.
    static constexpr int kYields = 8;
    static constexpr int kPausesBetweenLooks = 64;
    // How long a waiter spins when every rank has a processor of its own.
    static constexpr auto kSpinTime = std::chrono::microseconds(60);

    bool rest() noexcept {
      pauses_ = 0;
      if (machine_.waiting_ == Waiting::yields) return rests_++ < kYields && machine_.yield();
      const auto now = Deadline::Clock::now();
      if (rests_++ == 0) spin_until_ = now + kSpinTime;
      return now < spin_until_;
    }

    HostMachine& machine_;
    int pauses_ = 0;
    int rests_ = 0;
    Deadline::Clock::time_point spin_until_{};
  };

 private:
  // A sleeper looks round at least this often: for a peer's death, its own deadline, an interrupt. What other ranks do
  // wakes it (tests/model shows that nothing waits for this clock).
  static constexpr Milliseconds kSlice{20};
  // A yield that takes longer has given the processor to a thread that computes, for a slice of the scheduler's. Of the
  // waits that follow, this many do not yield but sleep at once: who wakes a sleeper interrupts such a thread.
  static constexpr auto kLongYield = std::chrono::microseconds(500);
  static constexpr int kWaitsWithoutYield = 256;

  // False: the processor is not to be given away, and was not.
  bool yield() noexcept {
    if (waits_without_yield_ > 0) {
      --waits_without_yield_;
      return false;
    }
    const auto begin = Deadline::Clock::now();
    ::sched_yield();
    if (Deadline::Clock::now() - begin > kLongYield) waits_without_yield_ = kWaitsWithoutYield;
    return true;
  }

  const World& world_;
  const Waiting waiting_;
  int waits_without_yield_ = 0;
  Deadline deadline_ = Deadline::never();
};

}  // namespace gradwire::shared

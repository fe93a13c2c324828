// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Messages for the channels of a backend: the matcher behind a lock, and who moves it.
//
// Frames are moved by whoever waits for a message and by a thread, so messages go on while their rank computes or sits
// in a collective. With requests under way the thread asks every 20 ms, by the clock and whatever the traffic, whether
// the ranks that they wait for are still there.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "gradwire/backend/messages/matcher_internal.h"
#include "gradwire/backend/messages/spin_time_internal.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/process.h"

namespace gradwire::messages {

// Thread-safe. In a forked child every call throws InvalidArgument or does nothing, and takes no lock: another thread
// of the parent may have held it at the fork.
class Engine final : public std::enable_shared_from_this<Engine> {
 public:
  // How a waiter and the thread wait.
  struct Rhythm {
    // A waiter asks the wire again and again before it sleeps, until nothing has moved for so long; shorter where that
    // was in vain of late.
    std::chrono::microseconds spin{0};
    std::chrono::microseconds wake_up{0};  // how much later a waiter that slept may see a frame
    bool yields = false;                   // it gives its processor away in between
    // A waiter then sleeps on the wire itself, and the thread stays away from the wire as long as somebody waits: one
    // wake-up a message, not two.
    bool waiter_leads = false;
    // Posting a message reads the wire, too. Not for wires that are dear to read.
    bool posting_reads = true;
    // A wire that cannot wake anybody: a waiter asks every `nap`, and the thread asks every `nap` with work under way
    // that nobody waits for. Zero: the wire's bell wakes the thread, and that the waiters.
    std::chrono::microseconds nap{0};
    std::chrono::microseconds idle_nap{0};  // the thread's, without work
  };
  struct Options {
    Limits limits;
    Rhythm rhythm;
    // For the choice of the way of messages (quicker_way_internal.h); null: messages are pulled where they can be.
    std::function<QuickerWay::TimePoint()> clock;
    // Whether the engine makes its thread itself, with the first message that cannot end at once. Otherwise the backend
    // calls serve() on one.
    bool makes_thread = true;
  };
  // Says why a rank's part on a channel cannot come any more; no reason while it can. Called with the lock held, with a
  // rank other than this one; must not call back.
  using FailureOf = std::function<Loss(int rank)>;

  Engine(std::unique_ptr<Wire> wire, Options options);
  // Ends what is under way.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // `failure_of` may be null. Throws ResourceError, the reason of close().
  void add_channel(std::uint64_t channel, std::shared_ptr<const Members> members, FailureOf failure_of);
  // Ends what is under way on the channel with `reason`; unless `notice` is null, the other ranks' requests that need
  // this one end with its text. The first call counts.
  void end_channel(std::uint64_t channel, const std::exception_ptr& reason, const Notice* notice) noexcept;
  // Forgets channels, which have ended.
  void remove_channels(std::uint64_t first, std::uint64_t last) noexcept;

  // As Channel's; arguments are checked, and `rank` counts in the channel. Throws InvalidArgument in a forked child,
  // ResourceError, the reason of close().
  std::shared_ptr<Request> isend(std::uint64_t channel, const void* data, std::size_t bytes, int rank,
                                 std::uint32_t tag);
  std::shared_ptr<Request> irecv(std::uint64_t channel, void* data, std::size_t bytes, int rank, std::uint32_t tag);

  // Moves frames on the calling thread until close(). Where the backend provides the thread.
  void serve();
  // Ends everything under way with `reason`, and later calls at once; the first reason stays. Ends serve() and the
  // engine's own thread: the wire is not touched any more, but by drain(). Unless `notice` is null, the other
  // ranks' requests that need this one are to end with its text, and drain() tells them.
  void close(const std::exception_ptr& reason, const Notice* notice) noexcept;
  // After close(): moves what can be moved. Returns whether something is still to be written.
  bool drain() noexcept;
  // Whether the wire has failed.
  bool is_broken() noexcept;

 private:
  class Ticket;
  using Clock = Deadline::Clock;

  std::shared_ptr<Request> post(Message::Direction direction, std::uint64_t channel, void* data, std::size_t bytes,
                                int rank, std::uint32_t tag);
  // Returns when the message is done; a message that misses the deadline is given up.
  void await(Message& message, Deadline deadline);
  bool done(const Message& message);
  bool done_by(Message& message, Deadline deadline);
  void await(MutexLock& lock, Message& message, Deadline deadline, bool cancels) GRADWIRE_REQUIRES(mutex_);
  void cancel(Message& message) noexcept;

  bool poll() noexcept GRADWIRE_REQUIRES(mutex_);  // nothing after close()
  bool move(bool (Matcher::*step)()) noexcept GRADWIRE_REQUIRES(mutex_);
  void break_off(const std::exception_ptr& reason) noexcept GRADWIRE_REQUIRES(mutex_);
  void require_open() const GRADWIRE_REQUIRES(mutex_);
  void ensure_thread() GRADWIRE_REQUIRES(mutex_);
  void tell_waiters() noexcept GRADWIRE_REQUIRES(mutex_);
  void stay_away(MutexLock& lock) GRADWIRE_REQUIRES(mutex_);
  // While the bell says `seen`. Lets go of the lock meanwhile.
  void sleep_on_wire(std::uint32_t seen, Clock::time_point until) GRADWIRE_REQUIRES(mutex_);
  void look_for_failures() noexcept GRADWIRE_REQUIRES(mutex_);
  std::exception_ptr why_give_up(const Message& message, Deadline deadline, Clock::time_point now) const
      GRADWIRE_REQUIRES(mutex_);
  std::chrono::microseconds next_nap() const GRADWIRE_REQUIRES(mutex_);

  const std::unique_ptr<Wire> wire_;
  const Options options_;
  const OwnerProcess owner_;
  const std::exception_ptr dropped_;  // made before there may be no memory for them
  const std::exception_ptr destroyed_;

  Mutex mutex_;
  ConditionVariable changed_;  // for waiters
  ConditionVariable free_;     // for the thread, while a waiter leads
  Matcher matcher_ GRADWIRE_GUARDED_BY(mutex_);
  std::map<std::uint64_t, FailureOf> failure_of_ GRADWIRE_GUARDED_BY(mutex_);
  std::exception_ptr closed_ GRADWIRE_GUARDED_BY(mutex_);
  bool broken_ GRADWIRE_GUARDED_BY(mutex_) = false;
  Clock::time_point next_look_ GRADWIRE_GUARDED_BY(mutex_);
  int waiters_ GRADWIRE_GUARDED_BY(mutex_) = 0;
  SpinTime spin_ GRADWIRE_GUARDED_BY(mutex_);
  std::atomic<bool> waited_ = false;              // somebody did, since the thread last looked
  bool led_ GRADWIRE_GUARDED_BY(mutex_) = false;  // a waiter sleeps on the wire
  bool idle_ GRADWIRE_GUARDED_BY(mutex_) = true;  // the thread sleeps, or is about to, without work
  Thread thread_ GRADWIRE_GUARDED_BY(mutex_);
};

}  // namespace gradwire::messages

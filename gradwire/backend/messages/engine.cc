// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/messages/engine_internal.h"

#include <algorithm>
#include <new>
#include <thread>
#include <utility>

#include "gradwire/backend/shared/futex_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/interrupt.h"
#include "gradwire/base/strings.h"

namespace gradwire::messages {
namespace {

using std::chrono::microseconds;

// How often the ranks that requests wait for are looked at, and waiters look at their own affairs.
constexpr Milliseconds kLook{20};
// The thread's sleep without work; its bell and wake() end it.
constexpr microseconds kIdle{1'000'000};
// How soon the thread sees that nobody waits any more, where waiters lead. Where waiters do not spin, ranks share
// processors: the longer somebody has waited, the seldomer it looks, as hundreds of threads may do so.
constexpr microseconds kBesideLeader{2000};
constexpr microseconds kBesideLongLeader{16'000};

// Counts one waiter, also where the wait ends with an exception.
class WaiterCount final {
 public:
  explicit WaiterCount(int& waiters) : waiters_(waiters) { ++waiters_; }
  ~WaiterCount() { --waiters_; }
  WaiterCount(const WaiterCount&) = delete;
  WaiterCount& operator=(const WaiterCount&) = delete;

 private:
  int& waiters_;
};

}  // namespace

// What a caller holds of a message.
class Engine::Ticket final : public Request {
 public:
  Ticket(std::shared_ptr<Engine> engine, MessagePtr message)
      : engine_(std::move(engine)), message_(std::move(message)) {}
  ~Ticket() override {
    if (!message_->done.load(std::memory_order_acquire)) engine_->cancel(*message_);
  }
  Status wait(Deadline deadline) override {
    engine_->owner_.require_current("this request");
    if (is_over()) {
      engine_->waited_.store(true, std::memory_order_relaxed);
    } else {
      engine_->await(*message_, deadline);
    }
    if (message_->error != nullptr) std::rethrow_exception(message_->error);
    return message_->status;
  }
  bool done() override { return is_over() || engine_->done(*message_); }
  bool done_by(Deadline deadline) override { return is_over() || engine_->done_by(*message_, deadline); }

 private:
  // Without the engine's lock: a message that is over stays as it is. In a forked child a wait throws at once.
  bool is_over() const { return !engine_->owner_.is_current() || message_->done.load(std::memory_order_acquire); }

  const std::shared_ptr<Engine> engine_;
  const MessagePtr message_;
};

Engine::Engine(std::unique_ptr<Wire> wire, Options options)
    : wire_(std::move(wire)),
      options_(options),
      dropped_(std::make_exception_ptr(AbortedError("the request was dropped before it ended"))),
      destroyed_(std::make_exception_ptr(AbortedError("point to point: the group was destroyed meanwhile"))),
      matcher_(*wire_, options.limits, options.clock),
      spin_(options.rhythm.spin, options.rhythm.wake_up) {}

Engine::~Engine() { close(destroyed_, nullptr); }

// --- channels ------------------------------------------------------------------------------------------------------

void Engine::add_channel(std::uint64_t channel, std::shared_ptr<const Members> members, FailureOf failure_of) {
  const MutexLock lock(mutex_);
  require_open();
  try {
    if (failure_of != nullptr) failure_of_[channel] = std::move(failure_of);
    matcher_.add_channel(channel, std::move(members));
  } catch (const std::bad_alloc&) {
    throw ResourceError("point to point: no memory for another channel");
  }
}

void Engine::end_channel(std::uint64_t channel, const std::exception_ptr& reason, const Notice* notice) noexcept {
  if (!owner_.is_current()) return;
  const MutexLock lock(mutex_);
  matcher_.end_channel(channel, reason, notice);
  poll();
}

void Engine::remove_channels(std::uint64_t first, std::uint64_t last) noexcept {
  if (!owner_.is_current()) return;
  const MutexLock lock(mutex_);
  failure_of_.erase(failure_of_.lower_bound(first), failure_of_.upper_bound(last));
  try {
    matcher_.remove_channels(first, last);
  } catch (const std::bad_alloc&) {  // what still comes for them is kept in vain, within the limits
  }
}

// --- requests ------------------------------------------------------------------------------------------------------

std::shared_ptr<Request> Engine::isend(std::uint64_t channel, const void* data, std::size_t bytes, int rank,
                                       std::uint32_t tag) {
  return post(Message::Direction::send, channel, const_cast<void*>(data), bytes, rank, tag);  // a send only reads it
}

std::shared_ptr<Request> Engine::irecv(std::uint64_t channel, void* data, std::size_t bytes, int rank,
                                       std::uint32_t tag) {
  return post(Message::Direction::receive, channel, data, bytes, rank, tag);
}

std::shared_ptr<Request> Engine::post(Message::Direction direction, std::uint64_t channel, void* data,
                                      std::size_t bytes, int rank, std::uint32_t tag) try {
  owner_.require_current("this group");
  auto message = std::make_shared<Message>(direction, channel, rank, tag, static_cast<std::byte*>(data), bytes);
  auto ticket = std::make_shared<Ticket>(shared_from_this(), message);
  const MutexLock lock(mutex_);
  require_open();
  if (matcher_.end_at_once(*message)) return ticket;
  // What has come makes room for a send, and the offer for a receive may have been cancelled. Where nothing wakes a
  // waiter, reading the wire is dear, and who waits for the message reads it at once.
  const bool reads = options_.rhythm.nap.count() == 0 && options_.rhythm.posting_reads;
  const bool first = direction == Message::Direction::send || message->found_offer;
  if (reads && first && poll() && matcher_.end_at_once(*message)) return ticket;
  require_open();  // polling may have found it broken
  // All that may fail comes before the message is known to anybody.
  ensure_thread();
  // A receive is there before the wire is read: so its message goes where it belongs at once.
  matcher_.start(message);
  move(reads ? &Matcher::poll_started : &Matcher::write_all);
  if (!message->done && idle_ && reads) wire_->wake();
  return ticket;
} catch (const std::bad_alloc&) {
  throw ResourceError(concat("point to point: no memory for a message of ", bytes, " bytes; nothing was sent"));
}

void Engine::await(Message& message, Deadline deadline) {
  MutexLock lock(mutex_);
  await(lock, message, deadline, true);
}

bool Engine::done_by(Message& message, Deadline deadline) {
  MutexLock lock(mutex_);
  await(lock, message, deadline, false);
  return message.done;
}

// Returns when the message is done, or somebody is to give it up: then it is cancelled, if `cancels`.
void Engine::await(MutexLock& lock, Message& message, Deadline deadline, bool cancels) {
  const Rhythm& rhythm = options_.rhythm;
  const WaiterCount counted(waiters_);
  waited_.store(true, std::memory_order_relaxed);
  // What is there already needs no look at the clock.
  if (!message.done && poll()) spin_.learn(Clock::duration::zero());
  auto now = message.done ? Clock::time_point() : Clock::now();
  auto quiet_since = now;
  while (!message.done) {
    const std::uint32_t seen = wire_->bell();  // before the wire is read: what comes afterwards rings it
    const bool moved = poll();
    now = Clock::now();
    if (moved) spin_.learn(now - std::exchange(quiet_since, now));
    if (message.done) break;
    if (const auto reason = why_give_up(message, deadline, now)) {
      if (!cancels) break;
      matcher_.cancel(message, reason);
      poll();
      break;
    }
    if (now >= next_look_) {
      look_for_failures();
      if (message.done) break;
    }
    if (moved || now < quiet_since + spin_.now()) {
      mutex_.unlock();
      // Where frames moved, more of them may be there already.
      if (!moved && rhythm.yields) std::this_thread::yield();
      if (!moved && !rhythm.yields) shared::spin_pause();
      mutex_.lock();
    } else if (rhythm.nap.count() > 0) {
      changed_.wait_for(lock, rhythm.nap);
    } else if (rhythm.waiter_leads && !led_) {
      sleep_on_wire(seen, std::min(deadline.point(), now + kLook));
    } else if (interrupt_check() != nullptr) {
      changed_.wait_until(lock, std::min(deadline.point(), now + kLook));
    } else if (deadline.point() == Clock::time_point::max()) {
      changed_.wait(lock);
    } else {
      changed_.wait_until(lock, deadline.point());
    }
  }
  if (waiters_ > 1 && rhythm.waiter_leads && !led_) changed_.notify_one();  // another may lead
}

void Engine::sleep_on_wire(std::uint32_t seen, Clock::time_point until) {
  led_ = true;
  mutex_.unlock();
  wire_->sleep(seen, std::chrono::ceil<microseconds>(std::max(until - Clock::now(), Clock::duration::zero())));
  mutex_.lock();
  led_ = false;
}

void Engine::tell_waiters() noexcept {
  changed_.notify_all();
  if (led_) wire_->wake();
}

std::exception_ptr Engine::why_give_up(const Message& message, Deadline deadline, Clock::time_point now) const {
  if (now >= deadline.point()) {
    return std::make_exception_ptr(
        TimeoutError(concat(matcher_.describe(message), ": the deadline passed"),
                     message.rank == kAnySource ? std::vector<int>{} : std::vector<int>{message.rank}));
  }
  const InterruptCheck check = interrupt_check();
  if (check == nullptr || !check()) return nullptr;
  return std::make_exception_ptr(
      AbortedError(concat(matcher_.describe(message), ": the wait was interrupted on this rank")));
}

bool Engine::done(const Message& message) {
  const MutexLock lock(mutex_);
  if (!message.done) poll();
  return message.done;
}

void Engine::cancel(Message& message) noexcept {
  if (!owner_.is_current()) return;
  const MutexLock lock(mutex_);
  if (message.done) return;
  matcher_.cancel(message, dropped_);
  poll();
}

// --- moving --------------------------------------------------------------------------------------------------------

bool Engine::poll() noexcept { return closed_ == nullptr && move(&Matcher::poll); }

bool Engine::move(bool (Matcher::*step)()) noexcept {
  bool moved = false;
  try {
    moved = (matcher_.*step)();
  } catch (...) {
    broken_ = true;
    break_off(std::current_exception());
  }
  if (wire_->take_lost()) next_look_ = Clock::time_point::min();
  if (matcher_.take_ended()) tell_waiters();
  return moved;
}

void Engine::break_off(const std::exception_ptr& reason) noexcept {
  if (closed_ == nullptr) closed_ = reason;
  matcher_.fail_all(closed_);
  tell_waiters();
}

void Engine::require_open() const {
  if (closed_ != nullptr) std::rethrow_exception(closed_);
}

void Engine::ensure_thread() {
  if (!options_.makes_thread || thread_.joinable()) return;
  thread_ = Thread("gradwire-p2p", [this] { serve(); });
}

void Engine::serve() {
  for (;;) {
    const std::uint32_t seen = wire_->bell();
    microseconds nap{0};
    {
      MutexLock lock(mutex_);
      idle_ = false;
      stay_away(lock);
      if (closed_ != nullptr) return;
      const bool moved = poll();
      if (matcher_.busy() && Clock::now() >= next_look_) look_for_failures();
      idle_ = !moved && !matcher_.busy();
      if (!moved) nap = next_nap();
    }
    if (nap.count() > 0) {
      wire_->sleep(seen, nap);
    } else if (options_.rhythm.yields) {
      std::this_thread::yield();
    }
  }
}

// The thread leaves the wire to the waiters, also between two waits that follow each other: else the next frame would
// wake the thread for nothing. It looks for ranks that are gone: waiters may not, whose messages are all there at once.
void Engine::stay_away(MutexLock& lock) {
  if (!options_.rhythm.waiter_leads) return;
  const auto longest = options_.rhythm.spin.count() > 0 ? kBesideLeader : kBesideLongLeader;
  for (auto pause = kBesideLeader;; pause = std::min(2 * pause, longest)) {
    const bool waited = waited_.exchange(false, std::memory_order_relaxed);
    if (closed_ != nullptr || (waiters_ == 0 && !waited)) return;
    free_.wait_for(lock, pause);
    if (closed_ == nullptr && matcher_.busy() && Clock::now() >= next_look_) look_for_failures();
  }
}

microseconds Engine::next_nap() const {
  constexpr microseconds kBesideWaiters{5000};
  const Rhythm& rhythm = options_.rhythm;
  if (rhythm.nap.count() > 0) return waiters_ > 0 ? kBesideWaiters : matcher_.busy() ? rhythm.nap : rhythm.idle_nap;
  // Where posting does not read, nothing wakes the thread for a message that was posted.
  return matcher_.busy() || !rhythm.posting_reads ? microseconds(kLook) : kIdle;
}

void Engine::look_for_failures() noexcept try {
  if (failure_of_.empty()) return;
  struct LostRank {
    std::uint64_t channel;
    int rank;
    Loss loss;
  };
  next_look_ = Clock::now() + kLook;
  std::vector<LostRank> lost;
  for (const auto& [channel, ranks] : matcher_.awaited()) {
    const auto found = failure_of_.find(channel);
    if (found == failure_of_.end()) continue;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      if (!ranks[rank]) continue;
      Loss loss = found->second(static_cast<int>(rank));
      if (loss.reason != nullptr) lost.push_back({channel, static_cast<int>(rank), std::move(loss)});
    }
  }
  if (lost.empty()) return;
  poll();  // what they sent before they went counts
  for (const LostRank& one : lost) matcher_.fail_rank(one.channel, one.rank, one.loss);
  if (matcher_.take_ended()) tell_waiters();
} catch (const std::bad_alloc&) {  // the next look comes
}

void Engine::close(const std::exception_ptr& reason, const Notice* notice) noexcept {
  if (!owner_.is_current()) return;
  Thread last;
  {
    const MutexLock lock(mutex_);
    if (closed_ == nullptr && notice != nullptr) {
      closed_ = reason;
      matcher_.end_all(reason, *notice);
    }
    if (notice == nullptr) break_off(reason);
    tell_waiters();
    free_.notify_all();
    last = std::move(thread_);
  }
  wire_->wake();
  last.join();
}

bool Engine::drain() noexcept {
  const MutexLock lock(mutex_);
  move(&Matcher::poll);
  return matcher_.busy();
}

bool Engine::is_broken() noexcept {
  const MutexLock lock(mutex_);
  return broken_;
}

}  // namespace gradwire::messages

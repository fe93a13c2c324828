// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The protocol by which ranks that share memory meet, fail and leave. It knows nothing of what they do in between.
//
// Every rank has a slot. Ranks meet in numbered steps: a rank arrives at step s by writing s into its arrival line s
// mod 2, and goes on when all others have arrived. A line is written again two steps later, when everybody has left the
// step in between and therefore no longer reads it: two lines suffice, and no rank waits to leave.
//
// A call is one or more steps. Its first step is its *entry*: each rank says something to the others there (its card).
// A rank may *lend* its own memory during a call, from entry to the next step, the *exit*. A rank that gives up on a
// call returns only when no other rank can be at work on what it lent (drain()).
//
// The protocol is a template over the machine it runs on (host_machine_internal.h), because the model checker of
// tests/model runs this same code on a machine of its own. That is also why every access that synchronises stands on a
// line of its own: a mutant of the protocol is a line with a weaker order.
//
// A machine M has
//   Atomic<T>, Plain<T>     std::atomic's operations; memory that the protocol itself keeps from races
//   Mutex, Lock             of one rank's threads
//   Card, Reason            what a rank says at entry; why its channel ended, for the rank itself
//   wait(word, seen)        sleeps while `word` holds `seen`, for a while; may return early
//   wake(word)              wakes all who sleep on `word`
//   Patience                { Patience(M&); bool more(); } whether to look once more before sleeping
//   is_gone(peer), interrupted(), expired()
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "gradwire/base/mutex.h"

namespace gradwire::shared {

enum class RankState : std::uint32_t { active = 0, left = 1, failed = 2 };
enum class FailureKind : std::uint32_t { peer, timeout, mismatch, aborted, other };

// What a rank that failed tells the others.
struct FailureReport {
  FailureKind kind;
  std::uint64_t culprits;  // a bit a rank
  std::uint64_t during;    // the entry step of the call under way then, or 0
  char reason[1024];
};

// How a wait for the other ranks ended.
struct StepEnd {
  enum class Kind { met, own_failure, peer_failed, peer_left, peer_died, interrupted, deadline };
  Kind kind = Kind::met;
  int peer = -1;  // whom it is about
  bool met() const noexcept { return kind == Kind::met; }
};

// One cache line says that a rank arrived, and with what. (128: processors fetch lines in pairs.)
template <class M>
struct alignas(128) ArrivalLine {
  typename M::template Atomic<std::uint64_t> step;
  typename M::template Plain<typename M::Card> card;
};

// What lies in shared memory for one rank. Zeroed at first.
template <class M>
struct StepsSlot {
  ArrivalLine<M> lines[2];
  alignas(128) typename M::template Atomic<std::uint32_t> sleepers;  // sleep, or are about to, until this rank arrives
  alignas(128) typename M::template Atomic<RankState> state;
  typename M::template Plain<FailureReport> report;  // written once, before the state
  // The entry step of the last call that this rank left by an error: it touches nobody's memory for that call any more.
  alignas(128) typename M::template Atomic<std::uint64_t> gave_up;
};

// One rank's side of the protocol. fail(), failed(), reason() and state_of() may be called from any thread, everything
// else by one thread at a time.
template <class M>
class Steps {
 public:
  using Card = typename M::Card;
  using Reason = typename M::Reason;
  using Slot = StepsSlot<M>;

  // The slots of all ranks lie `stride` bytes apart from `slots` on; they outlive the object.
  Steps(M& machine, std::byte* slots, std::size_t stride, int rank, int size) noexcept
      : machine_(machine), slots_(slots), stride_(stride), rank_(rank), size_(size) {}
  Steps(const Steps&) = delete;
  Steps& operator=(const Steps&) = delete;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  std::uint64_t step() const noexcept { return step_; }

  // The first step of a call. `lends`: until the exit others may work on memory of this rank that does not outlive it.
  StepEnd enter(const Card& mine, bool lends);
  // A further step of the call.
  StepEnd meet();
  // The call is over, well or with an agreed error after which the channel goes on.
  void finish() noexcept { entry_step_.store(0, std::memory_order_relaxed); }

  // What a rank said at the step that this rank met last. Valid until this rank arrives at the step after the next.
  const Card& card(int peer) const noexcept { return line(peer).card.read(); }
  // What this rank waits for at `peer`; met() where nothing stands in the way of waiting on.
  StepEnd look(int peer, bool for_death);
  bool has_arrived(int peer) const noexcept { return line(peer).step.load(std::memory_order_acquire) == step_; }

  // Ends this rank's part: the first reason stays and is told to the others. False: it had ended before.
  bool fail(FailureReport report, Reason reason);
  bool failed() const noexcept { return failed_.load(std::memory_order_acquire); }
  Reason reason() const;  // of the end; after failed()
  // After fail(), on the thread of the calls: returns when nobody is at work on what this rank lent.
  void drain();
  // This rank takes part in nothing more. What it lends must be its own again.
  void leave();

  RankState state_of(int peer) const noexcept { return slot(peer).state.load(std::memory_order_acquire); }
  const FailureReport& report_of(int peer) const noexcept { return slot(peer).report.read(); }  // of one that failed
  // A vote: a line of text in the report of a rank that has not failed. False: it has. The caller meets the others
  // before he reads theirs, and again before anybody says something else.
  bool say(const FailureReport& text);

 private:
  Slot& slot(int rank) const noexcept {
    return *reinterpret_cast<Slot*>(slots_ + static_cast<std::size_t>(rank) * stride_);
  }
  ArrivalLine<M>& line(int rank) const noexcept { return slot(rank).lines[step_ & 1]; }

  void arrive() noexcept;
  StepEnd await_all();
  StepEnd await(int peer);
  StepEnd sleep_until_arrived(int peer);
  bool is_at_work(int peer, std::uint64_t entry) const noexcept;
  void wake_everyone() const noexcept;

  M& machine_;
  std::byte* const slots_;
  const std::size_t stride_;
  const int rank_;
  const int size_;

  std::uint64_t step_ = 0;
  bool lends_ = false;
  typename M::template Atomic<std::uint64_t> entry_step_{0};  // of the call under way, or 0
  typename M::template Atomic<bool> failed_{false};
  mutable typename M::Mutex mutex_;
  Reason reason_ GRADWIRE_GUARDED_BY(mutex_){};
};

// --- meeting -------------------------------------------------------------------------------------------------------

template <class M>
StepEnd Steps<M>::enter(const Card& mine, bool lends) {
  lends_ = lends;
  ++step_;
  entry_step_.store(step_, std::memory_order_relaxed);
  line(rank_).card.write() = mine;
  arrive();
  if (const StepEnd end = await_all(); !end.met()) return end;
  // A rank that gave up on this call before this one came says so in its report; whoever sees none such may use what
  // the others lend (see drain()). What a rank did after this call, its failures included, is no concern of this call.
  for (int peer = 0; peer < size_; ++peer) {
    if (slot(peer).state.load(std::memory_order_seq_cst) != RankState::failed) continue;
    if (report_of(peer).during != step_) continue;
    if (failed()) return {StepEnd::Kind::own_failure, rank_};
    return {StepEnd::Kind::peer_failed, peer};
  }
  return {};
}

template <class M>
StepEnd Steps<M>::meet() {
  ++step_;
  arrive();
  return await_all();
}

template <class M>
void Steps<M>::arrive() noexcept {
  // An exchange is a full barrier: the store is seen before the count of sleepers is read, as a sleeper counts itself
  // before it looks again.
  line(rank_).step.exchange(step_, std::memory_order_seq_cst);
  if (slot(rank_).sleepers.load(std::memory_order_seq_cst) == 0) return;
  machine_.wake(line(rank_).step);
}

template <class M>
StepEnd Steps<M>::await_all() {
  for (int peer = rank_ + 1; peer < size_; ++peer) {
    if (const StepEnd end = await(peer); !end.met()) return end;
  }
  for (int peer = 0; peer < rank_; ++peer) {
    if (const StepEnd end = await(peer); !end.met()) return end;
  }
  return {};
}

template <class M>
StepEnd Steps<M>::await(int peer) {
  const auto& arrived = line(peer).step;
  if (arrived.load(std::memory_order_acquire) == step_) return {};
  for (typename M::Patience patience(machine_); patience.more();) {
    if (arrived.load(std::memory_order_acquire) == step_) return {};
  }
  return sleep_until_arrived(peer);
}

template <class M>
StepEnd Steps<M>::sleep_until_arrived(int peer) {
  const auto& arrived = line(peer).step;
  for (bool slept = false;; slept = true) {
    if (arrived.load(std::memory_order_acquire) == step_) return {};
    if (const StepEnd end = look(peer, slept); !end.met()) return end;
    slot(peer).sleepers.fetch_add(1, std::memory_order_seq_cst);
    const std::uint64_t seen = arrived.load(std::memory_order_seq_cst);
    if (seen != step_) machine_.wait(arrived, seen);
    slot(peer).sleepers.fetch_sub(1, std::memory_order_relaxed);
  }
}

template <class M>
StepEnd Steps<M>::look(int peer, bool for_death) {
  using Kind = StepEnd::Kind;
  if (failed()) return {Kind::own_failure, rank_};
  for (int other = 0; other < size_; ++other) {
    if (other == rank_ || state_of(other) != RankState::failed) continue;
    // It may have failed after this call, which it can have ended only because `peer` came: look again.
    if (peer != rank_ && has_arrived(peer)) return {};
    return {Kind::peer_failed, other};
  }
  if (peer != rank_) {
    const bool left = state_of(peer) == RankState::left;
    const bool gone = !left && for_death && machine_.is_gone(peer);
    // What a rank did before it went counts: look at its arrival again now that it is known to be over.
    if ((left || gone) && !has_arrived(peer)) return {left ? Kind::peer_left : Kind::peer_died, peer};
  }
  if (for_death && machine_.interrupted()) return {Kind::interrupted, rank_};
  if (machine_.expired()) {
    for (int other = 0; other < size_; ++other) {
      if (!has_arrived(other)) return {Kind::deadline, other};
    }
  }
  return {};
}

// --- ending --------------------------------------------------------------------------------------------------------

template <class M>
bool Steps<M>::fail(FailureReport report, Reason reason) {
  {
    const typename M::Lock lock(mutex_);
    if (failed()) return false;
    reason_ = std::move(reason);
    report.during = entry_step_.load(std::memory_order_relaxed);
    slot(rank_).report.write() = report;
    slot(rank_).state.store(RankState::failed, std::memory_order_seq_cst);
    failed_.store(true, std::memory_order_release);
  }
  wake_everyone();
  return true;
}

template <class M>
auto Steps<M>::reason() const -> Reason {
  const typename M::Lock lock(mutex_);
  return reason_;
}

template <class M>
bool Steps<M>::say(const FailureReport& text) {
  const typename M::Lock lock(mutex_);
  if (failed()) return false;
  slot(rank_).report.write() = text;
  return true;
}

// A rank that gives up must not return, and free what it lent, while another is at it. It has published its failure,
// and a rank that arrives later sees that and touches nothing. So it is left to wait for those who had arrived before,
// until they have reached the exit or given up as well, which they do as soon as they look for this rank there.
template <class M>
void Steps<M>::drain() {
  const std::uint64_t entry = entry_step_.load(std::memory_order_relaxed);
  slot(rank_).gave_up.store(entry, std::memory_order_seq_cst);
  finish();
  if (!lends_ || entry == 0) return;
  for (int peer = 0; peer < size_; ++peer) {
    while (peer != rank_ && is_at_work(peer, entry)) {
      wake_everyone();
      const auto& exit = slot(peer).lines[(entry + 1) & 1].step;
      machine_.wait(exit, exit.load(std::memory_order_seq_cst));
    }
  }
}

// Whether `peer` entered the call and has neither reached its exit nor given up.
template <class M>
bool Steps<M>::is_at_work(int peer, std::uint64_t entry) const noexcept {
  const Slot& other = slot(peer);
  const std::uint64_t exit = entry + 1;
  if (other.state.load(std::memory_order_seq_cst) == RankState::left) return false;
  if (other.gave_up.load(std::memory_order_seq_cst) >= entry) return false;
  if (other.lines[entry & 1].step.load(std::memory_order_seq_cst) != entry) return false;
  return other.lines[exit & 1].step.load(std::memory_order_seq_cst) < exit;
}

template <class M>
void Steps<M>::leave() {
  auto& state = slot(rank_).state;
  if (state.load(std::memory_order_relaxed) == RankState::active) {
    state.store(RankState::left, std::memory_order_seq_cst);
  }
  wake_everyone();
}

template <class M>
void Steps<M>::wake_everyone() const noexcept {
  // Waiters of other ranks sleep on this rank's lines, a waiter of this rank on some other's.
  for (int other = 0; other < size_; ++other) {
    for (const ArrivalLine<M>& arrival : slot(other).lines) machine_.wake(arrival.step);
  }
}

}  // namespace gradwire::shared

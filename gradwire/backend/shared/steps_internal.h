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
//   wait(word, seen)        sleeps while `word` holds `seen`, but looks round now and then; may return early
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
  alignas(128) typename M::template Atomic<std::uint32_t> sleepers;  // sleep, or are about to, until this rank moves on
  typename M::template Atomic<std::uint32_t> bell;  // what they sleep on: changes before they are woken
  alignas(128) typename M::template Atomic<RankState> state;
  typename M::template Plain<FailureReport> report;  // written once, before the state
  typename M::template Plain<FailureReport> vote;
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
  // A further step of the call. Its two halves: this rank arrives, and waits for the others.
  StepEnd meet();
  void arrive_at_next() noexcept;
  StepEnd await_others() { return await_all(); }
  // The step that ends a call in which this rank worked on others' memory. Not met where the owner of such memory gave
  // up on the call: what this rank found there may be what the owner wrote since.
  StepEnd exit();
  // The call is over, well or with an agreed error after which the channel goes on.
  void finish() noexcept { entry_ = 0; }

  // What a rank said at the step that this rank met last. Valid until this rank arrives at the step after the next.
  const Card& card(int peer) const noexcept { return line(peer).card.read(); }
  // Why this rank need not wait for `peer` any longer; met() where it has to. `for_death`: look for ranks that died,
  // too.
  StepEnd look(int peer, bool for_death);
  // Whether `peer` came to the step under way. Says nothing of its card.
  bool has_arrived(int peer) const noexcept { return line(peer).step.load(std::memory_order_relaxed) == step_; }

  // Ends this rank's part: the first reason stays and is told to the others. False: it had ended before.
  bool fail(const FailureReport& report, Reason reason);
  bool failed() const noexcept { return failed_.load(std::memory_order_relaxed); }
  Reason reason() const;  // of the end; after failed()
  // After fail(), on the thread of the calls: returns when nobody is at work on what this rank lent.
  void drain();
  // This rank takes part in nothing more. What it lends must be its own again.
  void leave();

  RankState state_of(int peer) const noexcept { return slot(peer).state.load(std::memory_order_acquire); }
  const FailureReport& report_of(int peer) const noexcept { return slot(peer).report.read(); }  // of one that failed
  // A vote. The caller meets the others before he reads theirs, and again before anybody votes on something else.
  void vote(const FailureReport& mine) { slot(rank_).vote.write() = mine; }
  const FailureReport& vote_of(int peer) const noexcept { return slot(peer).vote.read(); }

 private:
  Slot& slot(int rank) const noexcept {
    return *reinterpret_cast<Slot*>(slots_ + static_cast<std::size_t>(rank) * stride_);
  }
  ArrivalLine<M>& line(int rank) const noexcept { return slot(rank).lines[step_ & 1]; }

  void arrive() noexcept;
  StepEnd await_all();
  StepEnd await(int peer);
  StepEnd look_for_who_gave_up() const noexcept;
  template <class Over>
  void sleep_until(int peer, Over&& over);
  bool is_at_work(int peer) const noexcept;
  void ring(int rank) noexcept;

  M& machine_;
  std::byte* const slots_;
  const std::size_t stride_;
  const int rank_;
  const int size_;

  std::uint64_t step_ = 0;
  std::uint64_t entry_ = 0;  // the first step of the call under way, or 0
  bool lends_ = false;
  typename M::template Atomic<bool> failed_{false};
  mutable typename M::Mutex mutex_;
  Reason reason_ GRADWIRE_GUARDED_BY(mutex_){};
};

// --- meeting -------------------------------------------------------------------------------------------------------

template <class M>
StepEnd Steps<M>::enter(const Card& mine, bool lends) {
  lends_ = lends;
  entry_ = ++step_;
  line(rank_).card.write() = mine;
  arrive();
  if (const StepEnd end = await_all(); !end.met()) return end;
  // Either a rank that gives up on this call sees that this one came, and waits for it (drain()), or this one sees that
  // it gave up, and leaves what it lent alone: the sleepers' count decides, as in arrive().
  return look_for_who_gave_up();
}

// What a rank did after this call is no concern of this call.
template <class M>
StepEnd Steps<M>::look_for_who_gave_up() const noexcept {
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    if (slot(peer).gave_up.load(std::memory_order_acquire) == entry_) return {StepEnd::Kind::peer_failed, peer};
  }
  return {};
}

template <class M>
StepEnd Steps<M>::meet() {
  arrive_at_next();
  return await_others();
}

template <class M>
void Steps<M>::arrive_at_next() noexcept {
  ++step_;
  arrive();
}

// A rank may give up after it arrived at the exit, and then write to what it lent, while this one still reads there.
template <class M>
StepEnd Steps<M>::exit() {
  if (const StepEnd end = meet(); !end.met()) return end;
  return look_for_who_gave_up();
}

template <class M>
void Steps<M>::arrive() noexcept {
  // Either this rank sees that somebody sleeps, or he sees that it arrived: both store before they load.
  line(rank_).step.exchange(step_, std::memory_order_seq_cst);
  if (slot(rank_).sleepers.load(std::memory_order_seq_cst) != 0) ring(rank_);
}

// Wakes those who sleep until `rank` moves on, to look again.
template <class M>
void Steps<M>::ring(int rank) noexcept {
  slot(rank).bell.fetch_add(1, std::memory_order_release);
  machine_.wake(slot(rank).bell);
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
  StepEnd end;
  sleep_until(peer, [&](bool slept) {
    if (arrived.load(std::memory_order_seq_cst) == step_) return true;
    end = look(peer, slept);
    return !end.met();
  });
  return end;
}

// Sleeps until `over(slept)` holds, which is asked again whenever the bell of `peer` rings. What it asks for must ring
// that bell after it came true; what `peer` does alone, only where it sees sleepers.
template <class M>
template <class Over>
void Steps<M>::sleep_until(int peer, Over&& over) {
  auto& sleepers = slot(peer).sleepers;
  const auto& bell = slot(peer).bell;
  for (bool slept = false;; slept = true) {
    sleepers.fetch_add(1, std::memory_order_seq_cst);
    const std::uint32_t seen = bell.load(std::memory_order_acquire);
    const bool is_over = over(slept);
    if (!is_over) machine_.wait(bell, seen);
    sleepers.fetch_sub(1, std::memory_order_relaxed);
    if (is_over) return;
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
  // Nobody gets past this step without a rank that will not come to it. So this rank need not wait for `peer` then,
  // which may itself wait for this one elsewhere.
  for (int other = 0; peer != rank_ && other < size_; ++other) {
    if (other == rank_ || has_arrived(other)) continue;
    const bool gone = for_death && machine_.is_gone(other);
    const RankState state = state_of(other);  // after `gone`: a rank may leave, or fail, and then end
    // What a rank did before it went counts: look at its arrival again now that it is known to be over.
    if ((state == RankState::active && !gone) || has_arrived(other)) continue;
    if (state == RankState::active) return {Kind::peer_died, other};
    return {state == RankState::left ? Kind::peer_left : Kind::peer_failed, other};
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
bool Steps<M>::fail(const FailureReport& report, Reason reason) {
  {
    const typename M::Lock lock(mutex_);
    if (failed()) return false;
    reason_ = std::move(reason);
    slot(rank_).report.write() = report;
    slot(rank_).state.store(RankState::failed, std::memory_order_release);
    failed_.store(true, std::memory_order_relaxed);  // what it stands for is behind the mutex
  }
  // Whoever waits, waits in vain: other ranks for whatever rank, and a thread of this one.
  for (int other = 0; other < size_; ++other) ring(other);
  return true;
}

template <class M>
auto Steps<M>::reason() const -> Reason {
  const typename M::Lock lock(mutex_);
  return reason_;
}

// A rank that gives up must not return, and free what it lent, while another is at it. Who comes to the entry later
// sees that it gave up. So it is left to wait for those who came before, until they have reached the exit or given up
// as well, which they do as soon as they miss this rank there.
template <class M>
void Steps<M>::drain() {
  // An exchange: what this rank writes to its memory from now on must not be seen before this.
  slot(rank_).gave_up.exchange(entry_, std::memory_order_seq_cst);
  ring(rank_);
  for (int peer = 0; lends_ && entry_ != 0 && peer < size_; ++peer) {
    if (peer == rank_) continue;
    sleep_until(peer, [&](bool) { return !is_at_work(peer); });
  }
  finish();
}

// Whether `peer` came to the entry of this rank's call and has neither reached the exit nor given up.
template <class M>
bool Steps<M>::is_at_work(int peer) const noexcept {
  const Slot& other = slot(peer);
  const std::uint64_t exit = entry_ + 1;
  if (other.lines[entry_ & 1].step.load(std::memory_order_seq_cst) != entry_) return false;
  if (other.lines[exit & 1].step.load(std::memory_order_seq_cst) >= exit) return false;
  return other.gave_up.load(std::memory_order_acquire) < entry_;
}

template <class M>
void Steps<M>::leave() {
  auto& state = slot(rank_).state;
  if (state.load(std::memory_order_relaxed) == RankState::failed) return;
  state.store(RankState::left, std::memory_order_release);
  ring(rank_);
}

}  // namespace gradwire::shared

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How a SharedChannel ends: its own failures, those of others, and how each learns of the other.
#include <algorithm>
#include <cstring>

#include "gradwire/backend/shared/futex_internal.h"
#include "gradwire/backend/shared/shared_channel_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/interrupt.h"
#include "gradwire/base/strings.h"

namespace gradwire::shared {
namespace {

std::uint64_t to_mask(const std::vector<int>& ranks) {
  std::uint64_t mask = 0;
  for (const int rank : ranks) mask |= std::uint64_t{1} << static_cast<unsigned>(rank);
  return mask;
}

std::vector<int> to_ranks(std::uint64_t mask) {
  std::vector<int> ranks;
  for (int rank = 0; rank < kMaxWorldSize; ++rank) {
    if ((mask >> static_cast<unsigned>(rank) & 1U) != 0) ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace

std::string SharedChannel::in_call() const {
  return concat(name_of(operation_), " (call ", sequence_, ") on rank ", rank(), " of ", size());
}

std::vector<int> SharedChannel::missing_ranks() const {
  std::vector<int> missing;
  for (int peer = 0; peer < size(); ++peer) {
    if (line(peer).step.load(std::memory_order_acquire) != step_) missing.push_back(peer);
  }
  return missing;
}

void SharedChannel::check() const {
  if (!failed_.load(std::memory_order_acquire)) return;
  const MutexLock lock(failure_mutex_);
  std::rethrow_exception(failure_);
}

void SharedChannel::throw_if_over(int peer, bool look_for_death) {
  check();
  for (int other = 0; other < size(); ++other) {
    if (other == rank() || slot(other).failure.state.load(std::memory_order_acquire) != RankState::failed) continue;
    // It may have failed after this call, which it can have ended only because `peer` came: look again.
    if (line(peer).step.load(std::memory_order_acquire) == step_ && peer != rank()) return;
    adopt_failure_of(other);
  }
  if (peer != rank()) {
    const bool left = slot(peer).failure.state.load(std::memory_order_acquire) == RankState::left;
    const bool gone = !left && look_for_death && world_->is_gone(peer);
    // What a rank did before it went counts: look at its arrival again now that it is known to be over.
    if ((left || gone) && line(peer).step.load(std::memory_order_acquire) != step_) {
      throw PeerError(
          concat(in_call(), ": rank ", peer,
                 gone ? concat(" (", world_->describe_peer(peer), ") died") : std::string(" left the group"),
                 " before it did its part"),
          {peer});
    }
  }
  if (look_for_death) throw_if_interrupted(in_call());
  if (options_.deadline.expired()) {
    const std::vector<int> missing = missing_ranks();
    if (missing.empty()) return;
    throw TimeoutError(concat(in_call(), ": the deadline passed while waiting for ", name_ranks(missing)), missing);
  }
}

void SharedChannel::adopt_failure_of(int peer) const {
  const FailureNote& note = slot(peer).failure;
  const std::string reason(note.reason, ::strnlen(note.reason, sizeof(note.reason)));
  const std::string message = concat(in_call(), ": rank ", peer, " failed: ", reason);
  switch (note.kind) {
    case FailureKind::mismatch:
      throw MismatchError(message);
    case FailureKind::timeout:
      throw TimeoutError(message, to_ranks(note.culprits));
    case FailureKind::peer:
      throw PeerError(message, to_ranks(note.culprits));
    case FailureKind::aborted:
    case FailureKind::other:
      throw PeerError(message, {peer});
  }
  throw PeerError(message, {peer});
}

void SharedChannel::expect_direct_use(Location location) noexcept {
  // Memory of allocate() outlives the call whatever happens; memory of a thread of this process need not.
  direct_ = world_->shares_all_memory() && location.segment != 0;
}

// Ranks that are threads work on each other's buffers. A rank that gives up must not return, and free its buffer, while
// another is at it. It has published its failure, and a rank that arrives later sees that and touches nothing. So it is
// left to wait for those who had arrived before, until they have reached the exit or given up as well, which they do as
// soon as they look for this rank there.
void SharedChannel::drain() noexcept {
  const std::uint64_t entry = entry_step_.load(std::memory_order_relaxed);
  slot(rank()).gave_up.store(entry, std::memory_order_seq_cst);
  if (!direct_ || entry == 0) return;
  const std::uint64_t exit = entry + 1;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    const RankSlot& other = slot(peer);
    const auto at_work = [&] {
      return other.failure.state.load(std::memory_order_seq_cst) != RankState::left &&
             other.gave_up.load(std::memory_order_seq_cst) < entry &&
             other.lines[entry & 1].step.load(std::memory_order_seq_cst) == entry &&
             other.lines[exit & 1].step.load(std::memory_order_seq_cst) < exit;
    };
    while (at_work()) {
      wake_everyone();
      const auto& word = low_half(other.lines[exit & 1].step);
      futex_wait(word, word.load(std::memory_order_seq_cst), Milliseconds(1));
    }
  }
}

void SharedChannel::end(std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (const PeerError& e) {
    end_quietly(error, FailureKind::peer, to_mask(e.peers()), e.what());
  } catch (const TimeoutError& e) {
    end_quietly(error, FailureKind::timeout, to_mask(e.peers()), e.what());
  } catch (const MismatchError& e) {
    end_quietly(error, FailureKind::mismatch, 0, e.what());
  } catch (const AbortedError& e) {
    end_quietly(error, FailureKind::aborted, 0, e.what());
  } catch (const std::exception& e) {
    end_quietly(error, FailureKind::other, 0, e.what());
  } catch (...) {
    end_quietly(error, FailureKind::other, 0, "an exception that is no std::exception");
  }
  drain();
  entry_step_.store(0, std::memory_order_relaxed);
  check();
  std::rethrow_exception(error);
}

void SharedChannel::end_quietly(std::exception_ptr error, FailureKind kind, std::uint64_t culprits,
                                const std::string& reason) noexcept {
  {
    const MutexLock lock(failure_mutex_);
    if (failure_ != nullptr) return;
    failure_ = error;
    FailureNote& note = slot(rank()).failure;
    note.kind = kind;
    note.culprits = culprits;
    note.during = entry_step_.load(std::memory_order_relaxed);
    std::memset(note.reason, 0, sizeof(note.reason));
    reason.copy(note.reason, sizeof(note.reason) - 1);
    note.state.store(RankState::failed, std::memory_order_seq_cst);
    failed_.store(true, std::memory_order_release);
  }
  wake_everyone();
  point_to_point_->end_channel(id_, error);
}

void SharedChannel::abort(std::string_view reason) noexcept {
  if (!world_->owner().is_current()) return;
  try {
    const std::string text(reason);
    end_quietly(std::make_exception_ptr(AbortedError(concat("rank ", rank(), " of ", size(), " aborted: ", text))),
                FailureKind::aborted, 0, text);
  } catch (...) {  // out of memory for the text: the others learn by the deadline
  }
}

void SharedChannel::wake_everyone() const noexcept {
  // Waiters of other ranks sleep on this rank's lines, a waiter of this rank on some other's.
  for (int other = 0; other < size(); ++other) {
    for (const ArrivalLine& arrival : slot(other).lines) futex_wake_all(low_half(arrival.step));
  }
}

std::exception_ptr SharedChannel::point_to_point_failure(int peer) const {
  const RankState state = slot(peer).failure.state.load(std::memory_order_acquire);
  if (state == RankState::active) return nullptr;
  const std::string what = concat("point to point on rank ", rank(), " of ", size(), ": rank ", peer);
  if (state == RankState::left) return std::make_exception_ptr(PeerError(what + " left the group", {peer}));
  return std::make_exception_ptr(PeerError(concat(what, " failed: ", slot(peer).failure.reason), {peer}));
}

}  // namespace gradwire::shared

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/job/membership_internal.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "gradwire/backend/backend.h"
#include "gradwire/backend/rendezvous_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/interrupt.h"
#include "gradwire/base/process_identity.h"
#include "gradwire/base/strings.h"
#include "gradwire/store/prefix_store.h"
#include "gradwire/store/stored_number.h"

namespace gradwire::internal {
namespace {

constexpr Milliseconds kLook{200};
// While they wait, all ranks look for the dead, each at others: one look of each rank at all would be too much for the
// store.
constexpr int kRanksInALook = 16;
// How long a rank stays for others to hear of a failure.
constexpr Milliseconds kHearing{5000};
// How long the end of a process may take after its connections broke.
constexpr Milliseconds kEnding{500};
const std::string kOutcome = "outcome";
// How many processes are expected to come, where ranks disagree about the size of the world or have one number twice.
const std::string kExpected = "expected";
const std::string kOk = "ok";
const std::string kAbandoned = "abandoned";
const std::string kMismatch = "mismatch:";
const std::string kLost = "lost:";
const std::string kLate = "late:";

std::string peek(Store& store, const std::string& key) {
  return store.check(std::span(&key, 1)) ? store.get(key) : std::string();
}

std::string claim_key(int rank) { return concat("rank/", rank); }
std::string heard_key(int rank) { return concat("heard/", rank); }
std::string left_key(int rank) { return concat("left/", rank); }
// The processes, one a line, of the ranks that have come of those whose ends the process of that name sees. In one key:
// each rank asks for it once, and not for the claim of each other rank.
std::string neighbours_key(const std::string& process) { return concat("came/", sight_of(process)); }

// Whether one of these ranks has ended.
bool has_dead_neighbour(Store& store) {
  std::istringstream neighbours(peek(store, neighbours_key(process_identity())));
  for (std::string process; std::getline(neighbours, process);) {
    if (!may_be_alive(process)) return true;
  }
  return false;
}

// Of `count` ranks from `first` on, after the last of which comes rank 0, those that have certainly ended.
std::vector<int> dead_ranks(Store& store, int first, int count, int world_size) {
  std::vector<int> dead;
  for (int i = 0; i < count; ++i) {
    const int rank = (first + i) % world_size;
    const std::string claim = peek(store, claim_key(rank));
    if (!claim.empty() && !may_be_alive(claim)) dead.push_back(rank);
  }
  return dead;
}

std::vector<int> missing_ranks(Store& store, int world_size) {
  std::vector<int> missing;
  for (int rank = 0; rank < world_size; ++rank) {
    if (peek(store, claim_key(rank)).empty()) missing.push_back(rank);
  }
  return missing;
}

// Whether the process of that name has ended, or does so within a moment. Not for an empty name.
bool has_ended(const std::string& process) {
  const Deadline deadline = Deadline::after(kEnding);
  while (!process.empty() && may_be_alive(process) && !deadline.expired())
    std::this_thread::sleep_for(Milliseconds(10));
  return !process.empty() && !may_be_alive(process);
}

bool anyone_alive(Store& store, int world_size) {
  for (int rank = 0; rank < world_size; ++rank) {
    const std::string claim = peek(store, claim_key(rank));
    if (!claim.empty() && may_be_alive(claim)) return true;
  }
  return false;
}

// "mismatch:<text>", "lost:<rank>:<text>" or "late:<ranks>:<text>" as an exception.
[[noreturn]] void throw_failure(const std::string& outcome) {
  if (outcome.starts_with(kMismatch)) throw MismatchError(concat("rendezvous: ", outcome.substr(kMismatch.size())));
  static_assert(std::string_view("lost:").size() == std::string_view("late:").size());
  const std::size_t end = outcome.find(':', kLost.size());
  if (end == std::string::npos)
    throw StoreError(concat("rendezvous: the store holds an outcome that makes no sense: ", outcome));
  const std::vector<int> ranks = leading_numbers(outcome.substr(kLost.size()));
  const std::string text = concat("rendezvous: ", outcome.substr(end + 1));
  if (outcome.starts_with(kLate)) throw TimeoutError(text, ranks);
  throw PeerError(text, ranks);
}

}  // namespace

Membership::Membership(std::shared_ptr<Store> store, int rank, int world_size, Milliseconds timeout,
                       WaitReport::Periods reports, std::vector<std::string> next)
    : rank_(rank), world_size_(world_size), next_(std::move(next)), report_(reports) {
  const Deadline deadline = Deadline::after(timeout);
  const std::string current = peek(*store, "generation");
  std::uint64_t generation = current.empty() ? 0 : static_cast<std::uint64_t>(stored_number("generation", current));
  for (;; ++generation) {
    store_ = std::make_shared<PrefixStore>(concat("g", generation), store);
    if (join(*store_, world_size, deadline.remaining())) break;
  }
  if (rank == 0) store->set("generation", std::to_string(generation));
}

Membership::~Membership() {
  if (!owner_.is_current()) return;
  try {
    // The server may stand still, as that of a host that was cut off: then this looks in vain for a key that is there.
    const std::string own = claim_key(rank_);
    store_->wait(std::span(&own, 1), Milliseconds(0));
    store_->set(left_key(rank_), "1");
  } catch (const std::exception&) {  // the store went first; then nobody reads this either
  }
}

bool Membership::join(Store& store, int world_size, Milliseconds timeout) {
  std::string before = peek(store, kOutcome);
  // A dead rank that is found later is one of this generation. Ranks that died since have perhaps failed and ended in
  // between: then the generation has an outcome.
  if (before.empty() && has_dead_neighbour(store)) before = store.compare_set(kOutcome, "", kAbandoned);
  if (!before.empty()) {
    refuse_late(store, before, world_size);
    return false;
  }
  store.add("came", 1);
  try {
    claim(store, world_size);
    const std::string outcome = await_outcome(store, world_size, timeout);
    if (outcome == kAbandoned) return false;
    if (outcome != kOk) throw_failure(outcome);
    return true;
  } catch (const StoreError&) {
    // Rank 0, whose process serves the store, died.
    if (has_ended(server_)) {
      throw PeerError(concat("rendezvous: rank 0 (", describe_process(server_),
                             ") ended while the others waited for all to be there, and the store with it"),
                      {0});
    }
    throw;
  } catch (const MismatchError&) {
    let_all_hear(store, world_size, /*all_stay=*/true);
    throw;
  } catch (const PeerError&) {
    let_all_hear(store, world_size, /*all_stay=*/false);
    throw;
  } catch (const Error&) {
    let_all_hear(store, 0, /*all_stay=*/false);
    throw;
  }
}

void Membership::let_all_hear(Store& store, int world_size, bool all_stay) {
  const std::string all = "all_heard";
  try {
    std::int64_t awaited = std::max<std::int64_t>(store.add("came", 0), world_size);
    const std::string more = world_size > 0 ? peek(store, kExpected) : "";
    if (!more.empty()) awaited = std::max(awaited, stored_number(kExpected, more));
    store.set(heard_key(rank_), "1");
    std::vector<int> dead = dead_ranks(store, rank_, static_cast<int>(std::min<std::int64_t>(kRanksInALook, awaited)),
                                       static_cast<int>(awaited));
    // Those that heard of it before they ended are among the ranks that have heard.
    std::erase_if(dead, [&](int rank) { return !peek(store, heard_key(rank)).empty(); });
    awaited -= static_cast<std::int64_t>(dead.size());
    if (store.add("heard", 1) >= awaited) store.set(all, "1");
    if (rank_ == 0 || all_stay) store.wait(std::span(&all, 1), kHearing);
  } catch (const TimeoutError&) {  // some died, or are late
  } catch (const StoreError&) {    // the store went first
  }
}

void Membership::let_others_hear() noexcept {
  if (rank_ != 0) return;
  try {
    std::vector<int> staying(static_cast<std::size_t>(world_size_ - 1));
    std::iota(staying.begin(), staying.end(), 1);
    const auto is_gone = [&](int rank) {
      return !peek(*store_, left_key(rank)).empty() || !may_be_alive(peek(*store_, claim_key(rank)));
    };
    for (const Deadline patience = Deadline::after(kHearing); !staying.empty() && !patience.expired();) {
      std::vector<std::string> left;
      for (const int rank : staying) left.push_back(left_key(rank));
      try {
        store_->wait(left, std::min(kLook, patience.remaining()));
        return;
      } catch (const TimeoutError&) {
        std::erase_if(staying, is_gone);
      }
    }
  } catch (const std::exception&) {  // the store is not this process's, or has gone
  }
}

void Membership::refuse_late(Store& store, const std::string& outcome, int world_size) {
  if (outcome == kAbandoned) return;
  const std::string holder = peek(store, claim_key(rank_));
  if (outcome == kOk) {
    if (holder.empty() || !peek(store, left_key(rank_)).empty() || !may_be_alive(holder)) return;
    throw MismatchError(
        concat("rendezvous: rank ", rank_, " is taken: ", describe_process(holder), " is rank ", rank_,
               " of a job that runs through the same store; give each rank a number and each job a store of its own"));
  }
  // A failure that this rank has not heard of yet is its own as long as those who were there live; when they are gone
  // it is history.
  if (!holder.empty() || !anyone_alive(store, world_size)) return;
  store.compare_set(claim_key(rank_), "", process_identity());
  let_all_hear(store, world_size, /*all_stay=*/true);
  throw_failure(outcome);
}

void Membership::claim(Store& store, int world_size) {
  const std::string size = std::to_string(world_size);
  const std::string mine = process_identity();
  // Whoever has a claim is among the neighbours. Then the claim: who finds a failure looks for the processes it belongs
  // to.
  store.append(neighbours_key(mine), mine + "\n");
  const std::string holder = store.compare_set(claim_key(rank_), "", mine);
  const std::string version = store.compare_set("version", "", GRADWIRE_VERSION);
  const std::string agreed = store.compare_set("size", "", size);
  server_ = peek(store, claim_key(0));
  std::string problem;
  if (holder != mine) {
    problem =
        concat("two ranks have the number ", rank_, ": ", describe_process(holder), " and ", describe_process(mine));
    store.set(kExpected, std::to_string(world_size + 1));
  } else if (version != GRADWIRE_VERSION) {
    problem = concat("rank ", rank_, " has gradwire " GRADWIRE_VERSION ", another rank ", version,
                     "; install one version on all hosts");
  } else if (agreed != size) {
    problem = concat("rank ", rank_, " was started with a world of ", size, " ranks, another with ", agreed);
    store.set(kExpected, std::to_string(std::max<std::int64_t>(world_size, stored_number("size", agreed))));
  }
  if (!problem.empty()) {
    store.compare_set(kOutcome, "", concat(kMismatch, problem));
    throw MismatchError(concat("rendezvous: ", problem));
  }
  if (!next_.empty()) rendezvous::register_rank_at(store, rank_, next_);
  // A store that did not get a reply may have counted a rank twice: the claims decide.
  if (store.add("count", 1) >= world_size && missing_ranks(store, world_size).empty())
    store.compare_set(kOutcome, "", kOk);
}

std::string Membership::await_outcome(Store& store, int world_size, Milliseconds timeout) {
  const Deadline deadline = Deadline::after(timeout);
  int next = rank_ + 1;
  while (true) {
    try {
      store.wait(std::span(&kOutcome, 1), std::min(kLook, deadline.remaining()));
      return store.get(kOutcome);
    } catch (const TimeoutError&) {
      if (server_.empty()) server_ = peek(store, claim_key(0));
      report_.look(concat("rendezvous: rank ", rank_, " of ", world_size), [&] { return missing(store, world_size); });
      try {
        throw_if_interrupted("rendezvous");
      } catch (const AbortedError& error) {
        store.compare_set(kOutcome, "", concat(kLost, rank_, ":rank ", rank_, " gave up: ", error.what()));
        throw;
      }
      const int count = std::min(kRanksInALook, world_size);
      for (const int rank : dead_ranks(store, std::exchange(next, (next + count) % world_size), count, world_size)) {
        store.compare_set(kOutcome, "",
                          concat(kLost, rank, ":rank ", rank, " (", describe_process(peek(store, claim_key(rank))),
                                 ") ended while the others waited for all to be there"));
      }
      if (!deadline.expired() || !peek(store, kOutcome).empty()) continue;
      const std::vector<int> missing = missing_ranks(store, world_size);
      // A rank says who it is first.
      const std::string who = missing.empty() ? concat("of ", world_size, " ranks, all of which said who they are, one")
                                              : concat(name_ranks(missing), " of ", world_size);
      const std::string what = concat(who, " did not come within ", timeout.count(), " ms");
      store.compare_set(kOutcome, "", concat(kLate, gradwire::join(missing, ","), ":rank ", rank_, ": ", what));
      throw TimeoutError(concat("rendezvous: rank ", rank_, ": ", what), missing);
    }
  }
}

WaitReport::Missing Membership::missing(Store& store, int world_size) const {
  const std::vector<int> absent = missing_ranks(store, world_size);
  int lowest = 0;
  while (std::find(absent.begin(), absent.end(), lowest) != absent.end()) ++lowest;
  return {absent.empty() ? "" : name_ranks(absent), lowest == rank_};
}

}  // namespace gradwire::internal

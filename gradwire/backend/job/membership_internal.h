// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How ranks that share a store find out that all of them are there, and that they agree on their numbers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/base/deadline.h"
#include "gradwire/base/error.h"
#include "gradwire/base/process.h"
#include "gradwire/base/wait_report.h"
#include "gradwire/store/store.h"

namespace gradwire::internal {

// A rank's place in one generation of a store. A store serves several jobs one after another, and several pairs of init
// and destroy in one process. Each of these is a generation, whose keys begin with "g<number>/". A generation has a
// world size, a claim for each rank (which process the rank is), and one outcome, which is written once:
//   ok          every rank is there
//   mismatch    ranks disagree: another version of gradwire or world size, or two processes with one rank
//   lost        a rank died or gave up while the others waited
//   late        ranks did not come by the deadline of one that waited
//   abandoned   left over from a job that died during its rendezvous, and found by a rank of a later one
// Ranks join the first generation without an outcome. A rank that arrives after a failure, while the processes that
// failed still live, gets that failure. Processes of one host see whether the process of a claim is alive: a rank that
// dies while the others wait is noticed within a fraction of a second, and a generation with a dead claim is not
// joined. Between hosts the deadline decides.
class Membership {
 public:
  // Joins; returns when all ranks have joined. `next`: the prefixes, below store(), where the ranks meet next
  // (rendezvous::register_rank_at()). Throws MismatchError, PeerError that names the rank that died or gave up,
  // TimeoutError that names the missing ranks, AbortedError, StoreError.
  Membership(std::shared_ptr<Store> store, int rank, int world_size, Milliseconds timeout, WaitReport::Periods reports,
             std::vector<std::string> next = {});
  Membership(std::shared_ptr<Store> store, int rank, int world_size, Milliseconds timeout,
             std::vector<std::string> next = {})
      : Membership(std::move(store), rank, world_size, timeout, WaitReport::Periods(), std::move(next)) {}
  // Records that this rank is done with its generation, if the store is still there. Does nothing in a forked child.
  ~Membership();
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  // After a failure of what the ranks do next, which they tell each other through the store: rank 0, which may serve
  // the store, waits until the others have left or died, for 5 s at most. Other ranks do not wait.
  void let_others_hear() noexcept;

  // The store, prefixed for this generation.
  const std::shared_ptr<Store>& store() const noexcept { return store_; }

 private:
  // Returns whether this rank has joined; false: try the next generation.
  bool join(Store& store, int world_size, Milliseconds timeout);
  // After a failure: waits a moment until the ranks that came, and have not died, know of the failure; with a
  // `world_size`, so many ranks. Rank 0 waits, which may serve the store; with `all_stay`, every rank does. A rank that
  // comes later takes the failure for its own only while the process of one that failed lives (refuse_late()).
  void let_all_hear(Store& store, int world_size, bool all_stay);
  // Throws when an earlier outcome also applies to this rank.
  void refuse_late(Store& store, const std::string& outcome, int world_size);
  void claim(Store& store, int world_size);
  std::string await_outcome(Store& store, int world_size, Milliseconds timeout);

  // The ranks that have not come. Of those that have, the lowest gives the notice.
  WaitReport::Missing missing(Store& store, int world_size) const;

  const int rank_;
  const int world_size_;
  const std::vector<std::string> next_;
  WaitReport report_;
  const OwnerProcess owner_;
  std::shared_ptr<Store> store_;
  std::string server_;  // the process of rank 0 (process_identity()); empty: not known yet
};

// Runs `make`, with which the ranks go on after they have met. An error that they tell each other through the store is
// thrown when the others have heard of it.
template <class Make>
auto heard_by_all(Membership& membership, const Make& make) -> decltype(make()) {
  try {
    return make();
  } catch (const InvalidArgument&) {
    throw;  // of this rank alone
  } catch (const UnsupportedError&) {
    throw;
  } catch (...) {
    membership.let_others_hear();
    throw;
  }
}

}  // namespace gradwire::internal

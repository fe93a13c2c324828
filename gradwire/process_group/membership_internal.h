// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Taking part in a job: how ranks that share a store find out that all of them are there, and that they agree on who
// they are.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "gradwire/base/deadline.h"
#include "gradwire/base/process.h"
#include "gradwire/store/store.h"

namespace gradwire::internal {

// A rank's place in one generation of a store. A store serves several jobs one after another, and several init/destroy
// of one process: each is a generation, whose keys begin with "g<number>/". A generation has a world size, a claim for
// each rank (which process it is), and one outcome, which is written once:
//   ok          every rank is there
//   mismatch    ranks disagree: another version of gradwire or world size, or two processes with one rank
//   lost        a rank died or gave up while the others waited
//   abandoned   left over from a job that died during its rendezvous, and found by a rank of a later one
// Ranks join the first generation without an outcome; one that comes late to a failure of processes that still live
// gets that failure. Processes of one host see whether the process of a claim is alive, so a rank that dies while the
// others wait is noticed within a fraction of a second, and a generation with a dead claim is not joined. Between hosts
// the deadline decides.
class Membership {
 public:
  // When a rank that waits says who is missing: every `info` on the log's level info, and after `notice` once where
  // nobody chose a level, by the lowest rank that is there.
  struct Reports {
    Milliseconds info = std::chrono::seconds(10);
    Milliseconds notice = std::chrono::seconds(30);
  };
  // Joins; returns when all ranks have. Throws MismatchError, PeerError that names the rank which died or gave up,
  // TimeoutError that names the ranks which are missing, AbortedError, StoreError.
  Membership(std::shared_ptr<Store> store, int rank, int world_size, Milliseconds timeout, Reports reports);
  Membership(std::shared_ptr<Store> store, int rank, int world_size, Milliseconds timeout)
      : Membership(std::move(store), rank, world_size, timeout, Reports()) {}
  // Says that this rank is done with its generation, if the store is still there. Does nothing in a forked child.
  ~Membership();
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  // The store, prefixed for this generation.
  const std::shared_ptr<Store>& store() const noexcept { return store_; }

 private:
  // Whether this rank is in (else: try the next generation).
  bool join(Store& store, int world_size, Milliseconds timeout);
  // After a failure: rank 0 may serve the store, which goes with it, and waits a moment until those who came know too,
  // and `at_least` so many ranks.
  void let_all_hear(Store& store, int at_least);
  // Throws when an outcome that is there already is this rank's too.
  void refuse_late(Store& store, const std::string& outcome, int world_size);
  void claim(Store& store, int world_size);
  std::string await_outcome(Store& store, int world_size, Milliseconds timeout);

  // Says who is missing where that is due; `began` is when this rank began to wait.
  void report(Store& store, int world_size, Deadline::Clock::time_point began);

  const int rank_;
  const Reports reports_;
  std::int64_t infos_ = 0;  // how many reports there were
  bool noticed_ = false;
  const OwnerProcess owner_;
  std::shared_ptr<Store> store_;
};

}  // namespace gradwire::internal

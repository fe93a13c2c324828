// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Gloo's rendezvous, with errors that say which ranks are missing or dead.
//
// Gloo waits five times its timeout for a peer that dies, or whose cable is pulled, while they connect, and does not
// say for whom. So Gloo is given short timeouts, in tries on which all ranks agree through the store: one try in which
// all of them have connected is the group. After another the ranks look who has died, and try again with longer ones
// when all have come back: the longer tries do not wait for a rank that the store does not hear of.
#include <algorithm>
#include <numeric>
#include <utility>

#include "gradwire/backend/rendezvous_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/interrupt.h"
#include "gradwire/base/process_identity.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/c10d/c10d_error_internal.h"
#include "gradwire/process_group/c10d/c10d_store_internal.h"
#include "gradwire/process_group/c10d/gloo_internal.h"
#include "gradwire/process_group/c10d/group_over_c10d_internal.h"
#include "gradwire/store/prefix_store.h"

namespace gradwire::internal {
namespace {

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

constexpr Milliseconds kSlice{200};
constexpr int kTimeoutsOfATry = 5;  // Gloo's
// A first try of 1 s: as long as a lost packet of TCP's first takes to be sent again, and as an elastic job may wait
// for a host beyond its heartbeat.
constexpr Milliseconds kFirstTry = Milliseconds(1000) / kTimeoutsOfATry;

class GlooMeeting {
 public:
  explicit GlooMeeting(EngineMeeting meeting)
      : meeting_(std::make_shared<const EngineMeeting>(std::move(meeting))),
        store_(meeting_->store),
        rank_(meeting_->rank),
        size_(meeting_->size),
        deadline_(meeting_->deadline) {}

  BackendPtr connect() {
    try {
      rendezvous::claim_rank(*store_, "gloo", rank_, size_);
      Milliseconds patience = kFirstTry;
      for (int number = 0;; ++number, patience *= 2) {
        await_all(concat("here", number));
        if (BackendPtr engine = try_to_connect(number, patience)) return engine;
      }
    } catch (const std::exception& error) {
      rendezvous::announce_failure(*store_, rank_, error);
      throw;
    }
  }

  // Of all ranks, when they have connected.
  std::vector<std::string> processes() const { return rendezvous::processes_of(*store_, size_); }

 private:
  std::string what() const { return concat("gloo: rank ", rank_, " of ", size_); }

  // Throws where a rank failed or died, or this thread is interrupted.
  void check() const { check_ranks(*meeting_); }
  static void check_ranks(const EngineMeeting& meeting) {
    throw_if_interrupted("rendezvous");
    rendezvous::throw_if_failed(*meeting.store);
    if (meeting.check) meeting.check();
    std::vector<int> ranks(static_cast<std::size_t>(meeting.size));
    std::iota(ranks.begin(), ranks.end(), 0);
    std::vector<int> dead = rendezvous::dead_ranks(*meeting.store, ranks);
    if (!dead.empty()) rendezvous::throw_dead(*meeting.store, dead);
    const std::vector<std::string>& processes = meeting.processes;
    std::erase_if(
        ranks, [&](int rank) { return processes.empty() || may_be_alive(processes[static_cast<std::size_t>(rank)]); });
    if (!ranks.empty())
      throw PeerError(concat("rendezvous failed: ", name_ranks(ranks), " ended before all ranks were there"), ranks);
  }

  // Says that this rank has come to the place `name`, and waits until all have. Throws TimeoutError that names the
  // others.
  void await_all(const std::string& name) {
    const auto key_of = [&](int rank) { return concat(name, "/", rank); };
    store_->set(key_of(rank_), "1");
    for (int peer = 0; peer < size_;) {
      const std::string key = key_of(peer);
      try {
        store_->wait(std::span(&key, 1), std::min(kSlice, deadline_.remaining()));
        ++peer;
      } catch (const TimeoutError&) {
        check();
        if (deadline_.expired()) throw_missing(key_of);
      }
    }
  }

  template <class KeyOf>
  [[noreturn]] void throw_missing(const KeyOf& key_of) const {
    std::vector<int> missing;
    for (int peer = 0; peer < size_; ++peer) {
      const std::string key = key_of(peer);
      if (!store_->check(std::span(&key, 1))) missing.push_back(peer);
    }
    throw TimeoutError(concat(what(), ": ", name_ranks(missing), " did not come in time"), missing);
  }

  // Null when a rank, maybe another, has not connected in this try.
  BackendPtr try_to_connect(int number, Milliseconds patience) {
    const std::string prefix = concat("try", number);
    const auto engine_store = store_to_c10d_checking(std::make_shared<PrefixStore>(prefix, store_),
                                                     [meeting = meeting_] { check_ranks(*meeting); });
    const Milliseconds limit = std::max(deadline_.remaining() / kTimeoutsOfATry, Milliseconds(1));
    const std::string outcome = prefix + "/outcome";
    BackendPtr engine;
    try {
      engine = make_gloo(engine_store, rank_, size_, std::min(patience, limit));
      if (store_->add(prefix + "/connected", 1) == size_) store_->compare_set(outcome, "", "connected");
    } catch (...) {
      const auto error =
          error_from_c10d(concat(what(),
                                 ": connecting, by the addresses that the hosts have under their names unless "
                                 "GLOO_SOCKET_IFNAME names an interface"),
                          std::current_exception(), false);
      check();
      if (!ends_the_group(error) || deadline_.expired()) std::rethrow_exception(error);
      store_->compare_set(outcome, "", "failed");
    }
    if (await_outcome(outcome) != "connected" || engine == nullptr) return nullptr;
    engine->setTimeout(meeting_->timeout);
    return engine;
  }

  std::string await_outcome(const std::string& key) const {
    for (;;) {
      try {
        store_->wait(std::span(&key, 1), std::min(kSlice, deadline_.remaining()));
        return store_->get(key);
      } catch (const TimeoutError&) {
        check();
        if (deadline_.expired()) throw TimeoutError(concat(what(), ": the deadline passed while the ranks connected"));
      }
    }
  }

  const std::shared_ptr<const EngineMeeting> meeting_;
  const std::shared_ptr<Store> store_;
  const int rank_;
  const int size_;
  const Deadline deadline_;
};

std::shared_ptr<Store> meeting_place(const std::shared_ptr<Store>& store) {
  return std::make_shared<PrefixStore>("rendezvous", store);
}

// For duplicates and splits.
BackendPtr connect_gloo(const EngineMeeting& meeting) { return GlooMeeting(meeting).connect(); }

}  // namespace

std::shared_ptr<ProcessGroup> make_gloo_group(Deadline deadline, std::shared_ptr<Store> store, int rank, int size,
                                              Milliseconds timeout, std::vector<std::string> processes) {
  if (size < 1 || rank < 0 || rank >= size)
    throw InvalidArgument(concat("gloo: rank ", rank, " in a group of ", size, "; its ranks are 0 to ", size - 1));
  GlooMeeting meeting({meeting_place(store), rank, size, deadline, timeout, std::move(processes), nullptr});
  auto engine = meeting.connect();
  auto group = std::make_shared<GroupOverC10d>(
      std::move(engine), std::make_shared<PrefixStore>("group", std::move(store)), &connect_gloo, meeting.processes());
  group->set_timeout(timeout);
  return group;
}

void tell_gloo_failed(const std::shared_ptr<Store>& store, int rank, const std::exception_ptr& error) noexcept {
  try {
    rendezvous::announce_failure(*meeting_place(store), rank, error);
  } catch (const std::bad_alloc&) {  // the others have their deadlines
  }
}

}  // namespace gradwire::internal

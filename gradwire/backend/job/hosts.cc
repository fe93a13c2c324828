// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <span>

#include "gradwire/backend/job/hosts_internal.h"
#include "gradwire/backend/rendezvous_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/host_identity.h"
#include "gradwire/base/interrupt.h"
#include "gradwire/base/strings.h"

namespace gradwire::internal {
namespace {

constexpr Milliseconds kStoreLook{200};

// Returns whether all have said their texts.
bool await_texts(Store& store, const std::vector<std::string>& keys, const std::vector<int>& ranks, Deadline deadline) {
  for (;;) {
    bool are_there = true;
    try {
      store.wait(keys, std::min(kStoreLook, deadline.remaining()));
    } catch (const TimeoutError&) {
      are_there = false;
    }
    // First of all: a rank that failed ends, and is not the one that the others are to be told of.
    rendezvous::throw_if_failed(store);
    if (are_there) return true;
    throw_if_interrupted("make_process_group");
    const std::vector<int> dead = rendezvous::dead_ranks(store, ranks);
    if (!dead.empty() && !store.check(keys)) rendezvous::throw_dead(store, dead);
    if (dead.empty() && deadline.expired()) return false;
  }
}

}  // namespace

std::vector<std::string> exchange_texts(Store& store, const char* what, const std::string& mine, int rank, int size,
                                        Deadline deadline, const char* missing) {
  std::vector<std::string> keys;
  std::vector<int> ranks;
  for (int each = 0; each < size; ++each) {
    keys.push_back(concat(what, "/", each));
    ranks.push_back(each);
  }
  store.set(keys[static_cast<std::size_t>(rank)], mine);
  try {
    if (await_texts(store, keys, ranks, deadline)) return store.multi_get(keys);
    std::erase_if(ranks, [&](int each) { return store.check(std::span(&keys[static_cast<std::size_t>(each)], 1)); });
    throw TimeoutError(concat("rank ", rank, " of ", size, ": by the deadline these ranks have not said ", missing,
                              ": ", join(ranks, ", ")),
                       ranks);
  } catch (const StoreError&) {
    throw;
  } catch (const std::exception& error) {
    rendezvous::announce_failure(store, rank, error);
    throw;
  }
}

std::vector<std::string> exchange_hosts(Store& store, int rank, int size, Milliseconds timeout) {
  if (rank < 0 || rank >= size)
    throw InvalidArgument(concat("make_process_group: the rank is ", rank, "; it must be from 0 to ", size - 1));
  rendezvous::register_rank(store, rank);
  return exchange_texts(store, "host", host_identity(), rank, size, Deadline::after(timeout), "on which host they are");
}

}  // namespace gradwire::internal

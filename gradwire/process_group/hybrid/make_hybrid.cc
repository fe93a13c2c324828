// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "gradwire/backend/rendezvous_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/host_identity.h"
#include "gradwire/base/interrupt.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/c10d/gloo_internal.h"
#include "gradwire/process_group/hybrid/hybrid_group.h"
#include "gradwire/process_group/hybrid/make_hybrid_internal.h"
#include "gradwire/process_group/init.h"
#include "gradwire/process_group/outer_ranks_internal.h"
#include "gradwire/store/prefix_store.h"

namespace gradwire::internal {
namespace {

constexpr Milliseconds kStoreLook{200};

std::string key_of(int rank) { return concat("host/", rank); }

}  // namespace

std::vector<std::string> exchange_hosts(Store& store, int rank, int size, Milliseconds timeout) {
  if (rank < 0 || rank >= size)
    throw InvalidArgument(concat("make_process_group: the rank is ", rank, "; it must be from 0 to ", size - 1));
  rendezvous::register_rank(store, rank);
  store.set(key_of(rank), host_identity());
  std::vector<std::string> keys;
  std::vector<int> ranks;
  for (int each = 0; each < size; ++each) {
    keys.push_back(key_of(each));
    ranks.push_back(each);
  }
  const Deadline deadline = Deadline::after(timeout);
  for (;;) {
    try {
      store.wait(keys, std::min(kStoreLook, deadline.remaining()));
      return store.multi_get(keys);
    } catch (const TimeoutError&) {
      throw_if_interrupted("make_process_group");
      const std::vector<int> dead = rendezvous::dead_ranks(store, ranks);
      if (!dead.empty()) rendezvous::throw_dead(store, dead);
      if (deadline.expired()) break;
    }
  }
  std::erase_if(ranks, [&](int each) { return store.check(std::span(&keys[static_cast<std::size_t>(each)], 1)); });
  throw TimeoutError(concat("rank ", rank, " of ", size, ": after ", timeout.count(),
                            " ms these ranks have not said on which host they are: ", join(ranks, ", ")),
                     ranks);
}

std::shared_ptr<ProcessGroup> make_hybrid_group(const std::shared_ptr<Store>& store, int rank,
                                                const std::vector<std::string>& hosts, Milliseconds timeout) {
  const std::string& here = hosts[static_cast<std::size_t>(rank)];
  std::vector<int> locals;
  for (std::size_t each = 0; each < hosts.size(); ++each) {
    if (hosts[each] == here) locals.push_back(static_cast<int>(each));
  }
  const auto before = std::find(locals.begin(), locals.end(), rank) - locals.begin();
  const auto part = [&](const std::string& name) { return std::make_shared<PrefixStore>(name, store); };
  const auto everyone_at = part("everyone");
  std::vector<std::string> processes;
  for (int each = 0; each < static_cast<int>(hosts.size()); ++each)
    processes.push_back(rendezvous::process_of(*store, each));
  std::shared_ptr<ProcessGroup> local;
  try {
    const auto meeting = part(concat("local/", locals.front()));
    // So that one which dies before it comes there is not waited for.
    PrefixStore backend_of_local("backend", meeting);
    std::vector<std::string> here_processes;
    for (const int each : locals) here_processes.push_back(processes[static_cast<std::size_t>(each)]);
    rendezvous::register_processes(backend_of_local, here_processes);
    local = make_process_group("shm", meeting, static_cast<int>(before), static_cast<int>(locals.size()), timeout);
  } catch (...) {
    const auto error = in_outer_ranks(std::current_exception(), locals);
    tell_gloo_failed(everyone_at, rank, error);  // for the ranks of other hosts, which wait there
    std::rethrow_exception(error);
  }
  auto everyone = make_gloo_group(everyone_at, rank, static_cast<int>(hosts.size()), timeout, std::move(processes));
  return HybridGroup::make(std::move(everyone), std::move(local));
}

}  // namespace gradwire::internal

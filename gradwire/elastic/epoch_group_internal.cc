// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/elastic/epoch_group_internal.h"

#include <algorithm>
#include <vector>

#include "gradwire/backend/rendezvous_internal.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/hybrid/hybrid_group.h"
#include "gradwire/process_group/hybrid/make_hybrid_internal.h"
#include "gradwire/process_group/init.h"
#include "gradwire/store/prefix_store.h"

namespace gradwire::internal {

using membership::Epoch;

namespace {

std::vector<std::string> hosts_of(const Epoch& epoch) {
  std::vector<std::string> hosts;
  for (const membership::EpochMember& member : epoch.members) hosts.push_back(member.host);
  return hosts;
}

}  // namespace

bool crosses_hosts(const Epoch& epoch) {
  return std::any_of(epoch.members.begin(), epoch.members.end(),
                     [&](const auto& member) { return member.host != epoch.members.front().host; });
}

std::shared_ptr<Store> keys_of(const Epoch& epoch, const std::shared_ptr<Store>& store) {
  return std::make_shared<PrefixStore>(concat("world/", epoch.number), store);
}

std::shared_ptr<ProcessGroup> group_of(const Epoch& epoch, int rank, const std::shared_ptr<Store>& keys,
                                       const ElasticOptions& options, const std::string& name) {
  std::vector<std::string> processes;
  const std::string& here = epoch.members[static_cast<std::size_t>(rank)].host;
  // The coordinator tells of deaths on other hosts (EpochWatch).
  for (const membership::EpochMember& member : epoch.members)
    processes.push_back(member.host == here ? member.identity : "");
  PrefixStore of_backend("backend", keys);
  // A member that dies on its way is noticed although it never came.
  for (Store* part : {keys.get(), static_cast<Store*>(&of_backend)}) rendezvous::register_processes(*part, processes);
  const std::string backend = !options.backend.empty() ? options.backend : crosses_hosts(epoch) ? "hybrid" : "shm";
  const auto crossing = internal::crossing_of(backend);
  // A replay sums as the played job did, host by host, wherever its members run.
  auto group = epoch.played && crossing
                   ? internal::make_hybrid_group(Deadline::after(options.timeout), keys, rank, hosts_of(epoch),
                                                 *crossing, options.timeout)
                   : make_process_group(backend, keys, rank, static_cast<int>(processes.size()), options.timeout);
  // The flight recorder tells groups apart by name, and a newcomer has made fewer groups than the others.
  group->set_group_name(name);
  return group;
}

}  // namespace gradwire::internal

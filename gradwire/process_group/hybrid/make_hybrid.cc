// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <initializer_list>
#include <optional>
#include <utility>

#include "gradwire/backend/job/hosts_internal.h"
#include "gradwire/backend/rendezvous_internal.h"
#include "gradwire/backend/ucx/ucx_backend.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/c10d/gloo_internal.h"
#include "gradwire/process_group/hybrid/hybrid_group.h"
#include "gradwire/process_group/hybrid/make_hybrid_internal.h"
#include "gradwire/process_group/make_group_internal.h"
#include "gradwire/process_group/outer_ranks_internal.h"
#include "gradwire/store/prefix_store.h"

namespace gradwire::internal {
namespace {

// The part of a group's store where make_process_group() has the ranks of a backend meet.
constexpr const char* kBackendPrefix = "backend";

// make_group_by() for a backend of ours whose ranks are `processes`: a rank that dies on its way there is not
// waited for.
std::shared_ptr<ProcessGroup> make_of_processes(Deadline deadline, const char* backend,
                                                const std::shared_ptr<Store>& store, int rank, Milliseconds timeout,
                                                const std::vector<std::string>& processes) {
  PrefixStore meeting(kBackendPrefix, store);
  rendezvous::register_processes(meeting, processes);
  return make_group_by(deadline, backend, store, rank, static_cast<int>(processes.size()), timeout);
}

// The group of all ranks.
std::shared_ptr<ProcessGroup> make_everyone(Deadline deadline, Crossing crossing, const std::shared_ptr<Store>& store,
                                            int rank, Milliseconds timeout, std::vector<std::string> processes) {
  if (crossing == Crossing::ucx) return make_of_processes(deadline, "ucx", store, rank, timeout, processes);
  const int size = static_cast<int>(processes.size());
  return make_gloo_group(deadline, store, rank, size, timeout, std::move(processes));
}

// Ends make_everyone() on the ranks that are in it, because `rank` failed with `error` before.
void tell_everyone(Crossing crossing, const std::shared_ptr<Store>& store, int rank, const std::exception_ptr& error) {
  if (crossing == Crossing::gloo) return tell_gloo_failed(store, rank, error);
  PrefixStore meeting(kBackendPrefix, store);
  rendezvous::announce_failure(meeting, rank, error);
}

}  // namespace

std::optional<Crossing> crossing_of(std::string_view backend) {
  if (backend == kHybrid) return Crossing::any;
  if (backend == kHybridUcx) return Crossing::ucx;
  if (backend == kHybridGloo) return Crossing::gloo;
  return std::nullopt;
}

Crossing choose_crossing(Store& store, int rank, int size, const std::optional<std::string>& why_no_ucx,
                         Deadline deadline) {
  if (!gloo_is_built()) return Crossing::ucx;
  const std::vector<std::string> answers =
      exchange_texts(store, "has_ucx", why_no_ucx ? "no" : "yes", rank, size, deadline, "whether they have UCX");
  std::vector<int> without;
  for (int each = 0; each < size; ++each) {
    if (answers[static_cast<std::size_t>(each)] != "yes") without.push_back(each);
  }
  if (without.empty()) return Crossing::ucx;
  log::info(concat("rank ", rank, " of ", size, ": gloo crosses hosts, because ", name_ranks(without),
                   " cannot use UCX", why_no_ucx ? concat(": ", *why_no_ucx) : std::string()));
  return Crossing::gloo;
}

std::shared_ptr<ProcessGroup> make_hybrid_group(Deadline deadline, const std::shared_ptr<Store>& store, int rank,
                                                const std::vector<std::string>& hosts, Crossing crossing,
                                                Milliseconds timeout) {
  const int size = static_cast<int>(hosts.size());
  const std::string& here = hosts[static_cast<std::size_t>(rank)];
  std::vector<int> locals;
  std::vector<std::string> processes = rendezvous::processes_of(*store, size);
  std::vector<std::string> here_processes;
  for (int each = 0; each < size; ++each) {
    if (hosts[static_cast<std::size_t>(each)] != here) continue;
    locals.push_back(each);
    here_processes.push_back(processes[static_cast<std::size_t>(each)]);
  }
  if (crossing == Crossing::any) crossing = choose_crossing(*store, rank, size, why_no_ucx(), deadline);
  const auto before = std::find(locals.begin(), locals.end(), rank) - locals.begin();
  const auto part = [&](const std::string& name) { return std::make_shared<PrefixStore>(name, store); };
  const auto everyone_at = part("everyone");
  std::shared_ptr<ProcessGroup> local;
  try {
    local = make_of_processes(deadline, "shm", part(concat("local/", locals.front())), static_cast<int>(before),
                              timeout, here_processes);
  } catch (...) {
    const auto error = in_outer_ranks(std::current_exception(), locals);
    tell_everyone(crossing, everyone_at, rank, error);  // for the ranks of other hosts, which wait there
    std::rethrow_exception(error);
  }
  auto everyone = make_everyone(deadline, crossing, everyone_at, rank, timeout, std::move(processes));
  std::vector<int> first_of;  // of each rank's host
  for (const std::string& host : hosts)
    first_of.push_back(static_cast<int>(std::find(hosts.begin(), hosts.end(), host) - hosts.begin()));
  everyone->set_timeout(timeout_until(deadline));  // of the split that makes the groups between hosts
  auto group = HybridGroup::make(everyone, std::move(local), first_of);
  for (ProcessGroup* const each :
       std::initializer_list<ProcessGroup*>{group.get(), everyone.get(), group->cross().get()})
    if (each != nullptr) each->set_timeout(timeout);
  return group;
}

}  // namespace gradwire::internal

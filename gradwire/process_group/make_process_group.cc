// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A group by the name of its backend.
#include <algorithm>
#include <cctype>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/backend/job/hosts_internal.h"
#include "gradwire/backend/mpi/mpi_backend.h"
#include "gradwire/backend/registry.h"
#include "gradwire/backend/rendezvous_internal.h"
#include "gradwire/backend/ucx/ucx_backend.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/base/nearest.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/backend_group_internal.h"
#include "gradwire/process_group/backend_names_internal.h"
#include "gradwire/process_group/c10d/gloo_internal.h"
#include "gradwire/process_group/c10d/nccl_internal.h"
#include "gradwire/process_group/choose_backend_internal.h"
#include "gradwire/process_group/first_places_internal.h"
#include "gradwire/process_group/hybrid/make_hybrid_internal.h"
#include "gradwire/process_group/init.h"
#include "gradwire/process_group/make_group_internal.h"
#include "gradwire/process_group/user_backends_internal.h"
#include "gradwire/store/prefix_store.h"

namespace gradwire {

using internal::kAuto;
using internal::kGloo;
using internal::kNccl;
using internal::resolve_backend;

namespace {

std::vector<std::string> own_backend_names() {
  std::vector<std::string> names{kAuto, kGloo, internal::kHybrid, internal::kHybridGloo, internal::kHybridUcx, kNccl};
  for (const BackendEntry& entry : builtin_backends()) names.emplace_back(entry.name);
  return names;
}

}  // namespace

std::vector<std::string> backend_names() {
  std::vector<std::string> names = own_backend_names();
  for (std::string& name : internal::user_backend_names()) names.push_back(std::move(name));
  return names;
}

std::string internal::resolve_backend(const std::string& name) {
  const std::vector<std::string> known = backend_names();
  const std::string resolved = name.empty() ? kAuto : name;
  if (std::find(known.begin(), known.end(), resolved) != known.end()) return resolved;
  throw InvalidArgument(
      concat("unknown backend '", name, "'", did_you_mean(name, known), "; known are ", join(known, ", ")));
}

void register_backend(const std::string& name, GroupFactory factory) {
  const std::vector<std::string> own = own_backend_names();
  if (std::find(own.begin(), own.end(), name) != own.end())
    throw InvalidArgument(concat("register_backend: '", name, "' is a backend of gradwire's; give another name"));
  if (std::any_of(name.begin(), name.end(), [](unsigned char c) { return std::isupper(c) != 0; }))
    throw InvalidArgument(concat("register_backend: '", name, "' has capital letters; Python asks for small ones"));
  internal::add_user_backend(name, std::move(factory));
}

bool is_backend_built(std::string_view name) {
  if (name == kNccl) return internal::nccl_is_built();
  if (name == kGloo || name == internal::kHybridGloo) return internal::gloo_is_built();
  if (name == "ucx" || name == internal::kHybridUcx) return ucx_is_built();
  if (name == "mpi") return mpi_is_built();
  if (name == internal::kHybrid) return ucx_is_built() || internal::gloo_is_built();
  const std::vector<std::string> known = backend_names();
  return std::find(known.begin(), known.end(), name) != known.end();
}

std::shared_ptr<ProcessGroup> make_process_group(const std::string& backend, std::shared_ptr<Store> store, int rank,
                                                 int size, Milliseconds timeout,
                                                 const std::optional<at::Device>& device_id) {
  return internal::make_group_by(Deadline::after(timeout), backend, std::move(store), rank, size, timeout, device_id);
}

std::shared_ptr<ProcessGroup> internal::make_group_by(Deadline deadline, const std::string& backend,
                                                      std::shared_ptr<Store> store, int rank, int size,
                                                      Milliseconds timeout, const std::optional<at::Device>& device_id,
                                                      bool is_registered) {
  if (store == nullptr) throw InvalidArgument("make_process_group: the store is null");
  if (timeout.count() <= 0)
    throw InvalidArgument(concat("make_process_group: a timeout of ", timeout.count(), " ms; give a positive one"));
  const std::string asked = resolve_backend(backend);
  if (const GroupFactory factory = internal::user_backend(asked))
    return internal::make_user_group(asked, factory, std::move(store), rank, size, timeout);
  // What this rank alone may refuse comes before anything in the store: the program may try another backend then.
  internal::BackendChoice choice = internal::choose_backend(asked, device_id, /*one_host=*/false);
  if (choice.name == kNccl) internal::require_nccl();
  const auto part = [&](const std::string& name) { return std::make_shared<PrefixStore>(name, store); };
  const std::vector<std::string> first_places = internal::first_places();
  std::vector<std::shared_ptr<Store>> places;
  for (const std::string& place : first_places) places.push_back(place.empty() ? store : part(place));
  rendezvous::claim_backend(places, "make_process_group", rank, asked);
  if (!is_registered) rendezvous::register_rank_at(*store, rank, first_places);
  std::vector<std::string> hosts;
  if (internal::crossing_of(choice.name)) {
    hosts = internal::exchange_hosts(*store, rank, size, deadline.remaining());
    const bool one_host = std::count(hosts.begin(), hosts.end(), hosts.front()) == size;
    choice = internal::choose_backend(asked, device_id, one_host);
  }
  const auto& [name, why] = choice;
  log::info(concat("rank ", rank, " of ", size, ": backend ", name, ", because ", why));
  if (name == kNccl) {
    const auto cpu = internal::make_group_by(deadline, kAuto, part("cpu"), rank, size, timeout);
    return internal::make_nccl_group(deadline, cpu, part("nccl"), device_id);
  }
  if (name == kGloo) return internal::make_gloo_group(deadline, std::move(store), rank, size, timeout);
  if (const auto crossing = internal::crossing_of(name))
    return internal::make_hybrid_group(deadline, store, rank, hosts, *crossing, timeout);
  BackendOptions options;
  options.store = std::make_shared<PrefixStore>("backend", store);
  options.rank = rank;
  options.size = size;
  options.timeout = internal::timeout_until(deadline);
  std::shared_ptr<Backend> made = make_backend(name, options);
  auto group = internal::make_backend_group(std::move(made), std::make_shared<PrefixStore>("group", std::move(store)));
  group->set_timeout(timeout);
  return group;
}

}  // namespace gradwire

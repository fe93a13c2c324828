// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "gradwire/base/environment.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/hybrid/hybrid_group.h"
#include "gradwire/process_group/hybrid/make_hybrid_internal.h"
#include "gradwire/process_group/init.h"
#include "gradwire/store/prefix_store.h"

namespace gradwire::internal {
namespace {

std::string key_of(int rank) { return concat("host/", rank); }

}  // namespace

std::string host_identity() {
  if (const auto named = environment("GRADWIRE_HOST")) return concat("named ", *named);
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  struct stat network {};
  if (boot.empty() || ::stat("/proc/self/ns/net", &network) != 0) {
    throw ResourceError(
        "cannot tell which host this is (no boot_id or no network namespace in /proc); give each host a name of its "
        "own in GRADWIRE_HOST, or name the backend");
  }
  return concat(boot, " ", network.st_ino);
}

std::vector<std::string> exchange_hosts(Store& store, int rank, int size, Milliseconds timeout) {
  if (rank < 0 || rank >= size)
    throw InvalidArgument(concat("make_process_group: the rank is ", rank, "; it must be from 0 to ", size - 1));
  store.set(key_of(rank), host_identity());
  std::vector<std::string> keys;
  for (int each = 0; each < size; ++each) keys.push_back(key_of(each));
  try {
    store.wait(keys, timeout);
  } catch (const TimeoutError&) {
    std::vector<int> missing;
    for (int each = 0; each < size; ++each) {
      if (!store.check(std::span(&keys[static_cast<std::size_t>(each)], 1))) missing.push_back(each);
    }
    throw TimeoutError(concat("rank ", rank, " of ", size, ": after ", timeout.count(),
                              " ms these ranks have not said on which host they are: ", join(missing, ", ")),
                       missing);
  }
  return store.multi_get(keys);
}

std::shared_ptr<ProcessGroup> make_hybrid_group(const std::shared_ptr<Store>& store, int rank,
                                                const std::vector<std::string>& hosts, Milliseconds timeout) {
  const std::string& here = hosts[static_cast<std::size_t>(rank)];
  const auto first = std::find(hosts.begin(), hosts.end(), here);
  const auto before = std::count(hosts.begin(), hosts.begin() + rank, here);
  const auto locals = std::count(hosts.begin(), hosts.end(), here);
  const auto part = [&](const std::string& name) { return std::make_shared<PrefixStore>(name, store); };
  auto local = make_process_group("shm", part(concat("local/", first - hosts.begin())), static_cast<int>(before),
                                  static_cast<int>(locals), timeout);
  auto everyone = make_process_group("gloo", part("everyone"), rank, static_cast<int>(hosts.size()), timeout);
  return HybridGroup::make(std::move(everyone), std::move(local));
}

}  // namespace gradwire::internal

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "gradwire/backend/rendezvous_internal.h"
#include "gradwire/backend/ucx/meeting_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/interrupt.h"
#include "gradwire/base/strings.h"
#include "gradwire/store/stored_number.h"

namespace gradwire::ucx {
namespace {

std::string address_key(int rank) { return concat("ucx/address/", rank); }
std::string host_key(int rank) { return concat("ucx/host_of/", rank); }
std::string ranks_key(const std::string& host) { return concat("ucx/ranks_on/", host); }

// If all ranks have said their hosts: writes how many each host has, and returns how many `host` has; else 0.
int conclude(Store& store, int size, const std::string& host) {
  std::vector<std::string> said;
  for (int rank = 0; rank < size; ++rank) said.push_back(host_key(rank));
  if (!store.check(said)) return 0;
  std::map<std::string, int> ranks_on;
  for (const std::string& one : store.multi_get(said)) ++ranks_on[one];
  std::vector<std::string> keys;
  std::vector<std::string> values;
  for (const auto& [one, ranks] : ranks_on) {
    keys.push_back(ranks_key(one));
    values.push_back(std::to_string(ranks));
  }
  store.multi_set(keys, values);
  return ranks_on[host];
}

}  // namespace

int count_ranks_on(const std::string& host, const BackendOptions& options, const std::vector<int>& partners,
                   Deadline deadline) {
  Store& store = *options.store;
  store.set(host_key(options.rank), host);
  const std::string here = ranks_key(host);
  // A store that did not get a reply may have counted a rank twice: what the ranks said decides, and the last one to
  // come counts as many or more.
  if (store.add("ucx/count", 1) >= options.size) {
    if (const int ranks = conclude(store, options.size, host); ranks > 0) return ranks;
  }
  constexpr Milliseconds kLook{200};
  for (;;) {
    try {
      store.wait({&here, 1}, std::min(kLook, deadline.remaining()));
      return static_cast<int>(stored_number(here, store.get(here)));
    } catch (const TimeoutError&) {
      rendezvous::throw_if_failed(store);
      throw_if_interrupted("rendezvous");
      // Every rank has partners that watch it, and that tell the others.
      const std::vector<int> dead = rendezvous::dead_ranks(store, partners);
      if (store.check({&here, 1})) continue;
      if (!dead.empty()) rendezvous::throw_dead(store, dead);
      if (!deadline.expired()) continue;
      std::vector<int> missing;
      for (int rank = 0; rank < options.size; ++rank) {
        const std::string key = host_key(rank);
        if (!store.check({&key, 1})) missing.push_back(rank);
      }
      throw TimeoutError(concat("rendezvous: the deadline passed while waiting for ", name_ranks(missing)), missing);
    }
  }
}

std::vector<RankRecord> exchange_records(const BackendOptions& options, const std::vector<int>& partners,
                                         const std::string& sealed, const std::string& secret, Deadline deadline) {
  options.store->set(address_key(options.rank), sealed);
  std::vector<RankRecord> records(static_cast<std::size_t>(options.size));
  records[static_cast<std::size_t>(options.rank)] = decode_record(sealed, options.rank, secret);
  for (const int partner : partners) {
    const std::string text = rendezvous::await_key(*options.store, address_key(partner), partner, deadline);
    records[static_cast<std::size_t>(partner)] = decode_record(text, partner, secret);
  }
  return records;
}

}  // namespace gradwire::ucx

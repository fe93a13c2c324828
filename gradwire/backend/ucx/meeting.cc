// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "gradwire/backend/rendezvous_internal.h"
#include "gradwire/backend/ucx/meeting_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/interrupt.h"
#include "gradwire/base/strings.h"

namespace gradwire::ucx {
namespace {

std::string address_key(int rank) { return concat("ucx/address/", rank); }

}  // namespace

int count_ranks_on(const std::string& host, const BackendOptions& options, const std::vector<int>& partners,
                   Deadline deadline) {
  Store& store = *options.store;
  const std::string all_said = "ucx/all_said";
  const auto said = [](int rank) { return concat("ucx/said/", rank); };
  const std::string here = concat("ucx/on/", host);
  store.set(said(options.rank), "1");
  store.add(here, 1);
  if (store.add("ucx/count", 1) == options.size) store.set(all_said, "1");
  constexpr Milliseconds kLook{200};
  for (;;) {
    try {
      store.wait({&all_said, 1}, std::min(kLook, deadline.remaining()));
      return static_cast<int>(store.add(here, 0));
    } catch (const TimeoutError&) {
      rendezvous::throw_if_failed(store);
      throw_if_interrupted("rendezvous");
      // Every rank has partners that watch it, and that tell the others.
      const std::vector<int> dead = rendezvous::dead_ranks(store, partners);
      if (store.check({&all_said, 1})) continue;
      if (!dead.empty()) rendezvous::throw_dead(store, dead);
      if (!deadline.expired()) continue;
      std::vector<int> missing;
      for (int rank = 0; rank < options.size; ++rank) {
        const std::string key = said(rank);
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

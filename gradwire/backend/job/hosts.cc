// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/job/hosts_internal.h"
#include "gradwire/backend/rendezvous_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/host_identity.h"
#include "gradwire/base/strings.h"

namespace gradwire::internal {

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
    const std::vector<int> silent = rendezvous::await_keys(store, keys, ranks, deadline);
    if (silent.empty()) {
      rendezvous::throw_if_failed(store);  // a rank that said its text and failed then ends
      return store.multi_get(keys);
    }
    throw TimeoutError(concat("rank ", rank, " of ", size, ": by the deadline these ranks have not said ", missing,
                              ": ", join(silent, ", ")),
                       silent);
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

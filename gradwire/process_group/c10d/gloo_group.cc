// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Gloo's rendezvous, with errors that say which ranks are missing.
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/c10d/c10d_error_internal.h"
#include "gradwire/process_group/c10d/c10d_store.h"
#include "gradwire/process_group/c10d/gloo_internal.h"
#include "gradwire/store/prefix_store.h"

namespace gradwire::internal {
namespace {

void meet(Store& store, int rank, int size, Deadline deadline) {
  const std::string mine = std::to_string(size);
  const std::string agreed = store.compare_set("size", "", mine);
  if (agreed != mine) {
    throw MismatchError(
        concat("gloo: rank ", rank, " was started with world size ", size, ", another rank with ", agreed));
  }
  if (store.add(concat("claim/", rank), 1) != 1)
    throw MismatchError(concat("gloo: two ranks were started with the number ", rank, " (of ", size, ")"));
  store.set(concat("here/", rank), "1");
  std::vector<int> missing;
  for (int peer = 0; peer < size; ++peer) {
    const std::string key = concat("here/", peer);
    try {
      store.wait(std::span(&key, 1), deadline.remaining());
    } catch (const TimeoutError&) {
      missing.push_back(peer);
    }
  }
  if (missing.empty()) return;
  throw TimeoutError(concat("gloo: rank ", rank, " of ", size, ": ", name_ranks(missing), " did not come in time"),
                     missing);
}

}  // namespace

std::shared_ptr<ProcessGroup> make_gloo_group(std::shared_ptr<Store> store, int rank, int size, Milliseconds timeout) {
  if (size < 1 || rank < 0 || rank >= size)
    throw InvalidArgument(concat("gloo: rank ", rank, " in a group of ", size, "; its ranks are 0 to ", size - 1));
  const Deadline deadline = Deadline::after(timeout);
  PrefixStore rendezvous("rendezvous", store);
  meet(rendezvous, rank, size, deadline);
  const auto engine_store = store_to_c10d(std::make_shared<PrefixStore>("engine", store));
  c10::intrusive_ptr<c10d::Backend> engine;
  try {
    engine = make_gloo(engine_store, rank, size, timeout);
  } catch (...) {
    const std::string what = concat("gloo: rank ", rank, " of ", size, ": connecting");
    std::rethrow_exception(error_from_c10d(what, std::current_exception(), false));
  }
  FromC10dOptions options;
  options.store = std::make_shared<PrefixStore>("group", std::move(store));
  options.factory = &make_gloo;
  auto group = from_c10d(std::move(engine), options);
  group->set_timeout(timeout);
  return group;
}

}  // namespace gradwire::internal

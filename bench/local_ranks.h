// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Which ranks a worker process is.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gradwire/store/file_store.h"
#include "gradwire/store/hash_store.h"

namespace gradwire::bench {

// Runs `serve` as rank `rank` over the file `rendezvous`; with the backend "threads" as all ranks of the world, a
// thread each, over a store of the process. Returns when they have ended.
inline void serve_local_ranks(const std::string& backend, const std::string& rendezvous, int rank, int world,
                              const std::function<void(const std::shared_ptr<Store>& store, int rank)>& serve) {
  if (backend != "threads") {
    serve(std::make_shared<FileStore>(rendezvous, world), rank);
    return;
  }
  const auto store = std::make_shared<HashStore>();
  std::vector<std::jthread> ranks;
  for (int each = 0; each < world; ++each) {
    ranks.emplace_back([&serve, store, each] { serve(store, each); });
  }
}

}  // namespace gradwire::bench

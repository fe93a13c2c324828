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

// What every worker that is a rank is told.
struct RankOptions {
  std::string backend = "shm";
  std::string socket;      // the coordinator's
  std::string rendezvous;  // a file for the store
  int rank = 0;
  int world = 2;
  bool pin = true;  // keeps to the processor of its rank
};

// Runs `serve` as rank `options.rank` over the file `options.rendezvous`; with the backend "threads" as all ranks of
// the world, a thread each, over a store of the process. Returns when they have ended.
inline void serve_local_ranks(const RankOptions& options,
                              const std::function<void(const std::shared_ptr<Store>& store, int rank)>& serve) {
  if (options.backend != "threads") {
    serve(std::make_shared<FileStore>(options.rendezvous, options.world), options.rank);
    return;
  }
  const auto store = std::make_shared<HashStore>();
  std::vector<std::jthread> ranks;
  for (int each = 0; each < options.world; ++each) {
    ranks.emplace_back([&serve, store, each] { serve(store, each); });
  }
}

}  // namespace gradwire::bench

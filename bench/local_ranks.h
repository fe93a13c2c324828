// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The ranks of a worker process.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gradwire/store/file_store.h"
#include "gradwire/store/hash_store.h"

namespace gradwire::bench {

// The options of every worker that is a rank.
struct RankOptions {
  std::string backend = "shm";
  std::string socket;      // of the coordinator
  std::string rendezvous;  // a file for the store
  int rank = 0;
  int world = 2;
  bool pin = true;  // pin the rank to a processor
};

// Runs `serve` as rank `options.rank`, over the file `options.rendezvous`. With the backend "threads", runs `serve` as
// all ranks of the world, each on a thread, over a store in memory. Returns when the ranks have ended.
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

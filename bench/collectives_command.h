// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// gradwire-bench collectives: measures every collective of a ProcessGroup on ordinary tensors, and those of PyTorch's
// Gloo and OpenMPI in the same run.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "bench/contestants.h"
#include "bench/local_ranks.h"

namespace gradwire::bench {

// all_reduce, broadcast, reduce, all_gather, gather, scatter, reduce_scatter, all_to_all, send_recv, barrier.
//
// The bytes of a measurement are those of the largest tensor of a call: each rank's result (all_gather), the root's
// tensors (gather, scatter), each rank's input (reduce_scatter, all_to_all), or the only tensor of the call. send_recv
// is a ring: every rank sends to the next rank and receives from the previous rank. barrier has no bytes. The time is
// that of rank 0, which always receives data: it is the root of reduce and gather, but not of broadcast and scatter.
const std::vector<std::string>& known_collectives();

struct CollectivesCommandOptions {
  std::vector<std::string> collectives;  // empty: all
  std::string backend = "shm";
  int world = 2;
  std::vector<std::size_t> bytes{4096, std::size_t{1} << 20, std::size_t{25} << 20};
  int rounds = 3;
  bool peers = false;
  bool json = false;
  bool pin = true;
  std::string python;                             // a Python with torch, for Gloo
  std::optional<RankHosts> hosts = std::nullopt;  // empty: all ranks are processes of this host
};

// Measures float32 sums and prints. Throws std::runtime_error and InvalidArgument, and UnsupportedError in a build
// without torch.
void run_collectives(const CollectivesCommandOptions& options);

// Serves as rank `rank`, or, with the backend threads, as all ranks, each on a thread. The variant of a measurement is
// the collective.
void run_collective_worker(const RankOptions& options);

}  // namespace gradwire::bench

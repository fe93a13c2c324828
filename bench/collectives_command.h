// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// gradwire-bench collectives: every collective of a ProcessGroup on ordinary tensors, beside PyTorch's Gloo and OpenMPI
// in the same run.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "bench/local_ranks.h"

namespace gradwire::bench {

// all_reduce, broadcast, reduce, all_gather, gather, scatter, reduce_scatter, all_to_all, send_recv, barrier.
//
// The bytes of a measurement are those of the largest tensor of a call: what each rank has in the end (all_gather),
// what the root has (gather, scatter), what each rank gives (reduce_scatter, all_to_all), or the one tensor there is.
// send_recv is a ring: every rank sends to the next and receives from the one before. barrier has no bytes. Rank 0 is
// timed and always one that receives: the root of reduce and gather, not of broadcast and scatter.
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
  std::string python;  // that has torch, for Gloo
};

// Measures float32 sums and prints. Throws std::runtime_error, InvalidArgument; UnsupportedError in a build without
// torch.
void run_collectives(const CollectivesCommandOptions& options);

// Serves as rank `rank`, or, with the backend threads, as all ranks, a thread each. The variant of a measurement is the
// collective.
void run_collective_worker(const RankOptions& options);

}  // namespace gradwire::bench

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// gradwire-bench hooks: measures every communication hook on one bucket, and PyTorch's hook of the same name over Gloo
// in the same run.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "bench/contestants.h"
#include "bench/local_ranks.h"

namespace gradwire::bench {

struct HooksCommandOptions {
  std::vector<std::string> hooks;  // names for make_hook(); empty: all of PyTorch's hooks and the main compressors
  std::string backend = "shm";
  int world = 2;
  std::vector<std::size_t> bytes{std::size_t{25} << 20};  // of a bucket
  int rounds = 5;
  bool peers = false;
  bool json = false;
  bool pin = true;
  std::string python;                               // a Python with torch
  std::optional<RankHosts> network = std::nullopt;  // empty: all ranks are processes of this host
};

// Measures and prints. PowerSGD without the option `start` begins at the second step, so that only compressed steps are
// timed. Throws std::runtime_error and InvalidArgument. In a build without torch, this function and the two functions
// below throw UnsupportedError.
void run_hooks(const HooksCommandOptions& options);

// Prints every hook with its options, the bytes it sends and its paper.
void list_hooks(bool json);

// Serves as rank `rank`, or, with the backend threads, as all ranks, each on a thread. The variant of a measurement is
// the hook. The time covers the work of DDP on a bucket that is ready: the hook on a lane's group, in memory of the
// group, and the copy of its result into the bucket.
void run_hook_worker(const RankOptions& options);

}  // namespace gradwire::bench

// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// gradwire-bench hooks: every communication hook on one bucket, beside PyTorch's hook of that name over Gloo in the
// same run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/local_ranks.h"

namespace gradwire::bench {

// Ranks on several hosts (see network_command.h).
struct HookNetwork {
  int hosts = 2;
  int ranks_per_host = 1;
  std::string placement;                        // of ranks on hosts, by name
  std::string rate;                             // as tc has it; empty: not limited
  std::string delay;                            // the same
  std::vector<std::vector<std::string>> enter;  // by rank: the words before its program that run it on its host
  std::function<std::uint64_t()> sent_bytes;    // by all hosts together, so far
};

struct HooksCommandOptions {
  std::vector<std::string> hooks;  // as make_hook() takes them; empty: all of PyTorch's names and the main compressors
  std::string backend = "shm";
  int world = 2;
  std::vector<std::size_t> bytes{std::size_t{25} << 20};  // of a bucket
  int rounds = 5;
  bool peers = false;
  bool json = false;
  bool pin = true;
  std::string python;                                 // that has torch
  std::optional<HookNetwork> network = std::nullopt;  // nothing: all ranks are processes of this host
};

// Measures and prints. PowerSGD that names no start begins at the second step, so that what is timed is past it.
// Throws std::runtime_error, InvalidArgument; UnsupportedError in a build without torch, as do the two below.
void run_hooks(const HooksCommandOptions& options);

// Prints every hook with its options, the bytes it sends and its paper.
void list_hooks(bool json);

// Serves as rank `rank`, or, with the backend threads, as all ranks, a thread each. The variant of a measurement is the
// hook. What is timed is what DDP does with a bucket that is ready: the hook on a lane's group, in memory of the group,
// and its result back in the bucket.
void run_hook_worker(const RankOptions& options);

}  // namespace gradwire::bench

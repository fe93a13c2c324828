// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// gradwire-bench network: hooks over backends that cross hosts, on hosts made of this machine's network namespaces.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace gradwire::bench {

// How ranks lie on hosts: neighbours on one host, or rank r on host r modulo the hosts. For both sides.
inline const std::vector<std::string> kPlacements{"contiguous", "round-robin"};

struct NetworkCommandOptions {
  int hosts = 2;
  int ranks_per_host = 1;
  std::string placement = kPlacements.front();  // one of kPlacements
  std::string rate = "1gbit";                   // of every host's link, both ways, as tc has it; "none": not limited
  std::string delay;                            // of every host's way out, as tc has it; empty: none
  std::vector<std::string> backends{"gloo"};
  std::vector<std::string> hooks;  // empty: plain, casts, codecs and PowerSGD
  std::vector<std::size_t> bytes{std::size_t{25} << 20};
  int rounds = 3;
  bool peers = false;
  bool json = false;
  std::string python;  // that has torch
};

// Measures and prints; every backend with every hook. Where no namespaces can be made it prints why, on stderr, and
// returns 77, which test runners take for skipped; else 0. Throws as run_hooks(), and std::runtime_error where the
// kernel has no delay.
int run_network(const NetworkCommandOptions& options);

}  // namespace gradwire::bench

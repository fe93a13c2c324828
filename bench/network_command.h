// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// gradwire-bench network: measures hooks, or collectives, over backends that cross hosts. The hosts are network
// namespaces of this machine.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace gradwire::bench {

// The placements of ranks on hosts, for gradwire and its peers: consecutive ranks on one host, or rank r on host
// r modulo the number of hosts.
inline const std::vector<std::string> kPlacements{"contiguous", "round-robin"};

struct NetworkCommandOptions {
  int hosts = 2;
  int ranks_per_host = 1;
  std::string placement = kPlacements.front();  // one of kPlacements
  std::string rate = "1gbit";  // of every host's link, in both directions, in tc's units; "none": not limited
  std::string delay;           // of every packet that leaves a host, in tc's units; empty: none
  std::vector<std::string> backends{"gloo"};
  std::vector<std::string> collectives;  // not empty: these are measured, and no hooks
  std::vector<std::string> hooks;        // empty: plain, casts, codecs and PowerSGD
  std::vector<std::size_t> bytes{std::size_t{25} << 20};
  int rounds = 3;
  bool peers = false;
  bool json = false;
  std::string python;  // a Python with torch
};

// Measures every backend with every hook or collective, and prints. Returns 0, or 77 when this machine allows no
// network namespaces: it then prints the reason on stderr, and test runners count 77 as a skipped test. Throws as
// run_hooks() and run_collectives(), and std::runtime_error for a delay that the kernel does not support.
int run_network(const NetworkCommandOptions& options);

}  // namespace gradwire::bench
